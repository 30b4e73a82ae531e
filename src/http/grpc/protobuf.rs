//! Reads and writes the few Protocol Buffers messages that gateways use. The reader skips unknown
//! fields. It decodes only known nested messages, so no input can cause deep recursion.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The value of a field. `Skipped` stands for a number of fixed width, which the reader does not
/// decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtobufValue<'m> {
    Varint(u64),
    Bytes(&'m [u8]),
    Skipped,
}

/// An iterator over the fields of a message, in the order in which they are encoded.
#[derive(Clone, Debug)]
pub(super) struct MessageFields<'m>(&'m [u8]);

impl<'m> MessageFields<'m> {
    pub(super) fn new(message: &'m [u8]) -> Self {
        Self(message)
    }

    fn take(&mut self, length: u64) -> Result<&'m [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed)
    }

    fn field(&mut self) -> Result<(u64, ProtobufValue<'m>), Malformed> {
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 || number > 0x1fff_ffff {
            return Err(Malformed);
        }
        let value = match tag & 7 {
            0 => ProtobufValue::Varint(self.varint()?),
            1 => self.take(8).map(|_| ProtobufValue::Skipped)?,
            2 => {
                let length = self.varint()?;
                ProtobufValue::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| ProtobufValue::Skipped)?,
            // The messages of the gateways have no groups (wire types 3 and 4), and other wire
            // types do not exist.
            _ => return Err(Malformed),
        };
        Ok((number, value))
    }
}

impl<'m> Iterator for MessageFields<'m> {
    type Item = Result<(u64, ProtobufValue<'m>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// Returns an iterator over the length-delimited fields of `message`, each with its number.
pub(super) fn bytes_fields(
    message: &[u8],
) -> impl Iterator<Item = Result<(u64, &[u8]), Malformed>> {
    MessageFields::new(message).filter_map(|field| match field {
        Ok((number, ProtobufValue::Bytes(bytes))) => Some(Ok((number, bytes))),
        Ok((_, ProtobufValue::Varint(_) | ProtobufValue::Skipped)) => None,
        Err(Malformed) => Some(Err(Malformed)),
    })
}

/// Decodes the value of a field of type `string`.
pub(super) fn text(bytes: &[u8]) -> Result<String, Malformed> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Malformed)
}

/// Decodes a message with a key in field 1 and a value in field 2, such as an entry of a map.
/// Returns the key and the value.
pub(super) fn entry(message: &[u8]) -> Result<(String, Vec<u8>), Malformed> {
    let (mut key, mut value) = (String::new(), Vec::new());
    for field in bytes_fields(message) {
        let (number, bytes) = field?;
        match number {
            1 => key = text(bytes)?,
            2 => value = bytes.to_vec(),
            _ => {}
        }
    }
    Ok((key, value))
}

fn put_varint(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
        number >>= 7;
    }
    into.push(u8::try_from(number).unwrap_or_default());
}

/// Appends a field whose value is a number (wire type 0).
pub(super) fn put_number(into: &mut Vec<u8>, field: u64, number: u64) {
    put_varint(into, field << 3);
    put_varint(into, number);
}

/// Appends a field whose value is bytes, a text or a message (wire type 2).
pub(super) fn put_bytes(into: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(into, (field << 3) | 2);
    put_varint(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}

/// Encodes a message of fields whose values are bytes, texts or messages.
pub(super) fn message(fields: &[(u64, &[u8])]) -> Vec<u8> {
    let mut message = Vec::new();
    for (field, bytes) in fields {
        put_bytes(&mut message, *field, bytes);
    }
    message
}

/// Encodes a message with a key in field 1 and a value in field 2, such as an entry of a map or a
/// header.
pub(super) fn pair(key: &str, value: &[u8]) -> Vec<u8> {
    message(&[(1, key.as_bytes()), (2, value)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_bytes_fields(message: &[u8]) -> Result<Vec<(u64, &[u8])>, Malformed> {
        bytes_fields(message).collect()
    }

    #[test]
    fn written_fields_are_read_again() {
        let mut message = Vec::new();
        put_number(&mut message, 1, u64::MAX);
        put_bytes(&mut message, 300, b"text");
        let read: Vec<_> = MessageFields::new(&message).collect();
        assert_eq!(
            read,
            [
                Ok((1, ProtobufValue::Varint(u64::MAX))),
                Ok((300, ProtobufValue::Bytes(b"text"))),
            ]
        );
    }

    #[test]
    fn malformed_messages_are_refused() {
        let wrong: [&[u8]; 9] = [
            &[0x80],
            &[0x08],
            &[0x08, 0x80],
            &[0x0a, 5, b'a'],
            &[
                0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
            ],
            &[
                0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2,
            ],
            &[0x00, 0x00],
            &[0x0b, 0x0c],
            &[0x09, 1, 2, 3],
        ];
        for message in wrong {
            assert_eq!(all_bytes_fields(message), Err(Malformed), "{message:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let read: Vec<_> = MessageFields::new(&bytes).collect();
            proptest::prop_assert!(read.iter().rev().skip(1).all(Result::is_ok));
            let held = all_bytes_fields(&bytes).unwrap_or_default();
            let held: usize = held.iter().map(|(_, value)| value.len()).sum();
            proptest::prop_assert!(held <= bytes.len());
        }

        #[test]
        fn cut_message_gives_no_other_field(
            fields in proptest::collection::vec((1..0x2000_0000_u64, proptest::prelude::any::<Vec<u8>>()), 1..6),
            cut: proptest::sample::Index,
        ) {
            let mut message = Vec::new();
            for (number, value) in &fields {
                put_bytes(&mut message, *number, value);
            }
            let whole = all_bytes_fields(&message).unwrap();
            let written: Vec<_> = fields.iter().map(|(number, value)| (*number, value.as_slice())).collect();
            proptest::prop_assert_eq!(&whole, &written);
            if let Ok(part) = all_bytes_fields(&message[..cut.index(message.len())]) {
                proptest::prop_assert!(whole.starts_with(&part));
            }
        }
    }
}
