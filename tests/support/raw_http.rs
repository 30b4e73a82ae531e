//! Sends HTTP requests that no client library would send.

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// Sends bytes to a service, and returns the connection.
pub async fn send(url: &str, request: &[u8]) -> TcpStream {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    stream
}

/// Sends bytes to a service and reads the first line of its answer.
pub async fn first_line(url: &str, request: &[u8]) -> String {
    let mut reader = BufReader::new(send(url, request).await);
    let mut line = String::new();
    reader.read_line(&mut line).await.unwrap();
    line.trim_end().to_owned()
}
