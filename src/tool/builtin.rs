//! The two endpoints of the demonstration: `builtin:refunds/lookup_order` and
//! `builtin:refunds/refund_payment`. This service answers calls of these endpoints itself, without
//! an HTTP request. The endpoints keep no state: repeated lookups of an order give the same answer,
//! and refunds with the same `Idempotency-Key` give the same refund id.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// A tool's `url` with this prefix names an endpoint that this service answers itself, without an
/// HTTP request.
pub(super) const PREFIX: &str = "builtin:";
const ENDPOINTS: [(&str, BuiltinEndpoint); 2] = [
    ("builtin:refunds/lookup_order", BuiltinEndpoint::LookupOrder),
    (
        "builtin:refunds/refund_payment",
        BuiltinEndpoint::RefundPayment,
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BuiltinEndpoint {
    LookupOrder,
    RefundPayment,
}

impl BuiltinEndpoint {
    /// Returns the endpoint that `url` names. Fails with a description of the mistake in `url`.
    pub(super) fn from_url(url: &str) -> Result<Self, String> {
        let found = ENDPOINTS.iter().find(|(known, _)| *known == url);
        found.map(|(_, endpoint)| *endpoint).ok_or_else(|| {
            let known: Vec<&str> = ENDPOINTS.iter().map(|(known, _)| *known).collect();
            format!(
                "is not a built-in endpoint; there are {}",
                known.join(" and ")
            )
        })
    }

    pub(super) fn url(self) -> &'static str {
        ENDPOINTS
            .iter()
            .find(|(_, endpoint)| *endpoint == self)
            .map_or(PREFIX, |(url, _)| url)
    }

    /// Returns the HTTP status and the body of the answer to a call. `key` is the call's
    /// `Idempotency-Key`.
    pub(super) fn answer(self, key: &str, arguments: &Value) -> (u16, String) {
        let order = arguments.get("order").and_then(integer);
        let Some(order) = order.filter(|order| (1..=9999).contains(order)) else {
            return (
                404,
                json!({"error": "not found: the demonstration has the orders 1 to 9999"})
                    .to_string(),
            );
        };
        match self {
            Self::LookupOrder => (200, lookup(order).to_string()),
            Self::RefundPayment => {
                refund(key, order, arguments.get("amount").unwrap_or(&Value::Null))
            }
        }
    }
}

fn integer(value: &Value) -> Option<i64> {
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    text.strip_suffix(".0").unwrap_or(&text).parse().ok()
}

fn lookup(order: i64) -> Value {
    let items = [
        "a lamp",
        "two chairs",
        "a desk",
        "a set of plates",
        "a coffee machine",
    ];
    let index = usize::try_from(order).unwrap_or(0) % items.len();
    json!({
        "order": order,
        "customer": format!("C-{}", 1000 + order % 97),
        "item": items.get(index),
        "total": 40 + order * 37 % 460,
        "currency": "EUR",
        "status": "delivered",
    })
}

fn refund(key: &str, order: i64, amount: &Value) -> (u16, String) {
    let positive = amount.as_f64().is_some_and(|amount| amount > 0.0);
    if !positive {
        return (
            422,
            json!({"error": "the amount must be a number above 0"}).to_string(),
        );
    }
    let digest = Sha256::digest(key.as_bytes());
    let number = digest
        .iter()
        .take(4)
        .fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
    let refund = json!({"refund_id": format!("R-{number:08X}"), "status": "refunded", "order": order, "amount": amount});
    (200, refund.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_key_gives_the_same_refund_and_another_key_another() {
        let arguments = json!({"order": 17, "amount": 120});
        let (status, first) = BuiltinEndpoint::RefundPayment.answer("key-1", &arguments);
        assert_eq!(status, 200);
        assert_eq!(
            BuiltinEndpoint::RefundPayment.answer("key-1", &arguments),
            (200, first.clone())
        );
        let (_, second) = BuiltinEndpoint::RefundPayment.answer("key-2", &arguments);
        assert_ne!(first, second);
        let read: Value = serde_json::from_str(&first).unwrap();
        assert_eq!(
            (&read["status"], &read["amount"]),
            (&json!("refunded"), &json!(120))
        );
        assert!(read["refund_id"].as_str().unwrap().starts_with("R-"));
    }

    #[test]
    fn order_always_reads_the_same_and_an_unknown_one_is_not_found() {
        let (status, first) = BuiltinEndpoint::LookupOrder.answer("a", &json!({"order": 17}));
        assert_eq!(
            (status, first.clone()),
            BuiltinEndpoint::LookupOrder.answer("b", &json!({"order": "17"}))
        );
        assert!(first.contains("\"order\":17"));
        for order in [
            json!(0),
            json!(-1),
            json!(10_000),
            json!("x"),
            json!(1.5),
            Value::Null,
        ] {
            assert_eq!(
                BuiltinEndpoint::LookupOrder
                    .answer("a", &json!({"order": order}))
                    .0,
                404
            );
        }
        assert_eq!(
            BuiltinEndpoint::RefundPayment
                .answer("a", &json!({"order": 1, "amount": 0}))
                .0,
            422
        );
    }

    #[test]
    fn only_the_two_urls_are_known() {
        assert_eq!(
            BuiltinEndpoint::from_url("builtin:refunds/lookup_order"),
            Ok(BuiltinEndpoint::LookupOrder)
        );
        assert!(BuiltinEndpoint::from_url("builtin:refunds/x").is_err());
    }
}
