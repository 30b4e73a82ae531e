//! Reads everything that the service has stored, as text. Lists the spellings and hashes by which a
//! stored value could be recognized.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256, Sha512};

use super::variable_secrecy::spellings;
use crate::support::database::Database;
use crate::support::sqlite_file;

/// Returns every row of every table. On `SQLite`, also returns every byte of the database files.
pub async fn everything(url: &str, folder: &Path) -> Vec<(String, String)> {
    let (mut all, database) = (Vec::new(), Database::at(url));
    if url.starts_with("postgres") {
        let tables = "select tablename::text from pg_tables where schemaname not in ('pg_catalog', 'information_schema')";
        for table in database.texts(tables).await {
            let columns = format!(
                "select attname::text from pg_attribute where attrelid = '\"{table}\"'::regclass and attnum > 0 and not attisdropped"
            );
            // Selects each column as text, because JSON would escape the backslashes of a stored
            // value a second time.
            let columns: Vec<_> = database
                .texts(&columns)
                .await
                .iter()
                .map(|column| format!("\"{column}\"::text"))
                .collect();
            let columns = columns.join(", ");
            let rows = format!("select concat_ws(' ', {columns}) from \"{table}\"");
            all.push((table, database.texts(&rows).await.join("\n")));
        }
        return all;
    }
    for file in std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("holdpoint.db") {
            all.push((
                name,
                String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned(),
            ));
        }
    }
    let tables = "select name from sqlite_master where type = 'table'";
    for table in database.texts(tables).await {
        let columns = format!("select name from pragma_table_info('{table}')");
        // Selects each column in two forms: `quote` shows binary bytes as hex, and the cast gives
        // the plain text.
        let columns: Vec<_> = database
            .texts(&columns)
            .await
            .iter()
            .map(|name| {
                format!("quote(\"{name}\") || ' ' || coalesce(cast(\"{name}\" as text), '')")
            })
            .collect();
        let columns = columns.join(" || ' ' || ");
        let sql = format!("select cast({columns} as blob) from \"{table}\"");
        let rows = sqlite_file::rows(&sqlite_file::connect(url), &sql, |row| row.get(0));
        let rows: Vec<Vec<u8>> = rows.unwrap();
        let bytes = rows.join(&b'\n');
        all.push((table, String::from_utf8_lossy(&bytes).into_owned()));
    }
    all
}

/// Returns every text by which a reader of the stored data could recognize the value: its
/// spellings, its base64 inside a longer text, its bytes in hex, and its hashes.
pub fn traces(value: &str) -> Vec<String> {
    let mut all = spellings(value);
    all.extend(
        [0, 1, 2]
            .into_iter()
            .flat_map(|offset| in_base64(value.as_bytes(), offset)),
    );
    // A call's arguments are JSON inside JSON, so each spelling may be escaped once more.
    let twice: Vec<_> = all
        .iter()
        .map(|text| serde_json::to_string(text).unwrap())
        .collect();
    all.extend(twice.iter().map(|text| text[1..text.len() - 1].to_owned()));
    all.push(hex(value.as_bytes()));
    all.extend(hashes(value.as_bytes()));
    all.sort();
    all.dedup();
    all
}

/// Returns the value's base64 inside a longer text, in both alphabets. Base64 encodes groups of
/// three bytes; the value begins `offset` bytes after the start of a group. Leaves out the
/// characters at the two ends, which also depend on the bytes around the value.
fn in_base64(value: &[u8], offset: usize) -> [String; 2] {
    let padded = [&[0; 2][..offset], value].concat();
    let (from, to) = ((offset * 8).div_ceil(6), padded.len() * 8 / 6);
    [
        BASE64_STANDARD_NO_PAD.encode(&padded)[from..to].to_owned(),
        BASE64_URL_SAFE_NO_PAD.encode(&padded)[from..to].to_owned(),
    ]
}

pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Returns the unkeyed hashes of these bytes, in hex.
pub fn hashes(bytes: &[u8]) -> Vec<String> {
    vec![
        hash("md5sum", bytes),
        hash("sha1sum", bytes),
        hex(&Sha256::digest(bytes)),
        hex(&Sha512::digest(bytes)),
    ]
}

/// Returns the hash that a program of the system computes, because no dependency of the tests does.
fn hash(program: &str, bytes: &[u8]) -> String {
    let mut process = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(bytes).unwrap();
    let said = String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap();
    said.split_whitespace().next().unwrap().to_owned()
}
