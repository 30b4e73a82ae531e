//! Everything that is stored, as text; and every spelling in which a value, or a hash of it, could
//! be read again.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _, SqliteConnection,
};

use super::variable_secrecy::spellings;

/// Every row of every table, and of `SQLite` every byte of its files, too.
pub async fn everything(url: &str, folder: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    if url.starts_with("postgres") {
        let mut connection = PgConnection::connect(url).await.unwrap();
        let tables = "select tablename::text from pg_tables where schemaname not in ('pg_catalog', 'information_schema')";
        for table in connection.fetch_all(tables).await.unwrap() {
            let table: String = table.get(0);
            // Each column as text: in JSON, the escapes inside a value would be escaped once more.
            let columns = format!(
                "select attname::text from pg_attribute where attrelid = '\"{table}\"'::regclass and attnum > 0 and not attisdropped"
            );
            let columns = connection.fetch_all(AssertSqlSafe(columns)).await.unwrap();
            let columns: Vec<_> = columns
                .iter()
                .map(|column| format!("\"{}\"::text", column.get::<String, _>(0)))
                .collect();
            let sql = format!(
                "select concat_ws(' ', {}) from \"{table}\"",
                columns.join(", ")
            );
            let rows = connection.fetch_all(AssertSqlSafe(sql)).await.unwrap();
            all.push((
                table,
                rows.iter()
                    .map(|row| row.get::<String, _>(0) + "\n")
                    .collect(),
            ));
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
    let mut connection = SqliteConnection::connect(url).await.unwrap();
    for table in connection
        .fetch_all("select name from sqlite_master where type = 'table'")
        .await
        .unwrap()
    {
        let table: String = table.get(0);
        let columns = format!("select name from pragma_table_info('{table}')");
        let columns = connection.fetch_all(AssertSqlSafe(columns)).await.unwrap();
        // Each column twice: quoted, which shows bytes that are no text as hex, and as text.
        let columns: Vec<_> = columns
            .iter()
            .map(|column| {
                format!(
                    "quote(\"{0}\") || ' ' || coalesce(cast(\"{0}\" as text), '')",
                    column.get::<String, _>(0)
                )
            })
            .collect();
        let sql = format!(
            "select cast({} as blob) from \"{table}\"",
            columns.join(" || ' ' || ")
        );
        let mut text = String::new();
        for row in connection.fetch_all(AssertSqlSafe(sql)).await.unwrap() {
            let _ = writeln!(
                text,
                "{}",
                String::from_utf8_lossy(&row.get::<Vec<u8>, _>(0))
            );
        }
        all.push((table, text));
    }
    all
}

/// Every text in which these bytes could be found again: spelled otherwise, inside a longer text in
/// base64, or hashed.
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

/// The base64 characters that the value alone determines, when it begins `offset` bytes after the
/// start of a group of three.
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

/// The unkeyed hashes of these bytes, in hex.
pub fn hashes(bytes: &[u8]) -> Vec<String> {
    ["md5sum", "sha1sum", "sha256sum", "sha512sum"]
        .map(|program| hash(program, bytes))
        .to_vec()
}

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
