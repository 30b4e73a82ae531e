//! Sends HTTP requests that no client library would send.

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// Sends bytes to a service and reads the first line of its answer.
pub async fn first_line(url: &str, request: &[u8]) -> String {
    let stream = TcpStream::connect(url.strip_prefix("http://").unwrap())
        .await
        .unwrap();
    let (read, mut write) = stream.into_split();
    write.write_all(request).await.unwrap();
    let mut line = String::new();
    BufReader::new(read).read_line(&mut line).await.unwrap();
    line.trim_end().to_owned()
}
