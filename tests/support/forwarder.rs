//! A proxy to the test's Postgres, or to the service, that a test may cut, silence and slow down.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// All bytes pass, delayed by this much.
    Open(Duration),
    /// Every connection is closed, including new connections.
    Cut,
    /// All bytes are dropped, and neither side gets an error.
    Silent,
}

/// The server to which the proxy connects.
#[derive(Clone)]
enum Server {
    /// The unix socket of a throwaway Postgres.
    Postgres(String),
    /// The address of a service.
    Service(String),
}

type Halves = (
    Box<dyn AsyncRead + Send + Unpin>,
    Box<dyn AsyncWrite + Send + Unpin>,
);

impl Server {
    async fn connect(&self) -> std::io::Result<Halves> {
        match self {
            Self::Postgres(socket) => {
                let (from, to) = UnixStream::connect(socket).await?.into_split();
                Ok((Box::new(from), Box::new(to)))
            }
            Self::Service(address) => {
                let (from, to) = TcpStream::connect(address).await?.into_split();
                Ok((Box::new(from), Box::new(to)))
            }
        }
    }
}

/// Listens on loopback and forwards to a server.
pub struct Forwarder {
    url: String,
    line: Arc<watch::Sender<Line>>,
    left: Arc<AtomicUsize>,
    trips: Arc<AtomicUsize>,
}

/// Reads the client's messages as their bytes pass through the proxy. Counts the messages that
/// begin a round trip (Sync and Query).
struct Messages {
    /// The start of a message whose end has not passed yet.
    rest: Vec<u8>,
    /// Whether the first message, which has no type, has passed.
    started: bool,
    trips: Arc<AtomicUsize>,
}

impl Messages {
    fn pass(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        loop {
            let head = usize::from(self.started);
            let Some(length) = self.rest.get(head..head + 4) else {
                return;
            };
            let length = u32::from_be_bytes(length.try_into().unwrap());
            let end = head + usize::try_from(length).unwrap();
            if self.rest.len() < end {
                return;
            }
            // A client waits for the server after a Sync message, which ends an extended query, and
            // after a Query message, which is a simple query.
            if self.started && matches!(self.rest[0], b'S' | b'Q') {
                self.trips.fetch_add(1, Ordering::SeqCst);
            }
            self.started = true;
            self.rest.drain(..end);
        }
    }
}

impl Forwarder {
    /// Starts a proxy to the database of this URL. The database is on the Postgres server that all
    /// tests share, or on a server that a test has started for itself.
    pub async fn to(database: &str) -> Self {
        let rest = database
            .strip_prefix("postgres://postgres@")
            .expect("the throwaway cluster");
        let (folder, name) = rest.rsplit_once('/').unwrap();
        let socket = format!("{}/.s.PGSQL.5432", folder.replace("%2F", "/"));
        Self::start(Server::Postgres(socket), |own| {
            format!("postgres://postgres@{own}/{name}?sslmode=disable")
        })
        .await
    }

    /// Starts a proxy to the service at this URL.
    pub async fn to_service(url: &str) -> Self {
        let address = url.strip_prefix("http://").unwrap().to_owned();
        Self::start(Server::Service(address), |own| format!("http://{own}")).await
    }

    /// Starts a proxy to `server`. `url` makes the proxy's URL from the address at which the proxy
    /// listens.
    async fn start(server: Server, url: impl FnOnce(SocketAddr) -> String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url(listener.local_addr().unwrap());
        let line = Arc::new(watch::Sender::new(Line::Open(Duration::ZERO)));
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let (said, bytes) = (Arc::clone(&line), Arc::clone(&left));
        let trips = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&trips);
        #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (heard, bytes, server) = (said.subscribe(), Arc::clone(&bytes), server.clone());
                let messages = Messages {
                    rest: Vec::new(),
                    started: false,
                    trips: Arc::clone(&counter),
                };
                let messages = Some(messages).filter(|_| matches!(server, Server::Postgres(_)));
                tokio::spawn(async move {
                    let Ok((from_server, to_server)) = server.connect().await else {
                        return;
                    };
                    let (from_client, to_client) = client.into_split();
                    // When one of these futures ends, `select!` drops the other two. This closes
                    // the connections to the client and to the server.
                    tokio::select! {
                        () = pump(from_client, to_server, heard.clone(), None, messages) => {}
                        () = pump(from_server, to_client, heard.clone(), Some(bytes), None) => {}
                        () = cut(heard.clone()) => {}
                    }
                });
            }
        });
        Self {
            url,
            line,
            left,
            trips,
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the number of round trips to Postgres that clients have begun, summed over all
    /// connections.
    pub fn round_trips(&self) -> usize {
        self.trips.load(Ordering::SeqCst)
    }

    /// Ends every connection. Until [`Forwarder::mend`], also ends each new connection.
    pub fn cut(&self) {
        self.line.send_replace(Line::Cut);
    }

    /// Drops all bytes from now on. Existing connections stay open, and new connections are
    /// accepted.
    pub fn blackhole(&self) {
        self.line.send_replace(Line::Silent);
    }

    pub fn delay(&self, time: Duration) {
        self.line.send_replace(Line::Open(time));
    }

    /// Ends the effect of [`Forwarder::cut`], [`Forwarder::blackhole`] and [`Forwarder::delay`]. If
    /// the proxy has dropped bytes of a connection, it also drops all later bytes that this
    /// connection carries in the same direction.
    pub fn mend(&self) {
        self.line.send_replace(Line::Open(Duration::ZERO));
    }

    /// Lets the server send `bytes` more bytes, counted over all connections. Then cuts the one
    /// connection that carries the next byte. All other connections stay open.
    pub fn cut_after(&self, bytes: usize) {
        self.left.store(bytes, Ordering::SeqCst);
    }
}

async fn cut(mut heard: watch::Receiver<Line>) {
    if heard.wait_for(|line| *line == Line::Cut).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    heard: watch::Receiver<Line>,
    left: Option<Arc<AtomicUsize>>,
    mut messages: Option<Messages>,
) {
    let mut bytes = vec![0; 1 << 16];
    let mut dead = false;
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if let Some(messages) = &mut messages {
            messages.pass(&bytes[..read]);
        }
        let line = *heard.borrow();
        match line {
            Line::Open(late) if !late.is_zero() => {
                tokio::time::timeout(late, std::future::pending::<()>())
                    .await
                    .unwrap_or(());
            }
            Line::Open(_) | Line::Cut => {}
            Line::Silent => dead = true,
        }
        if dead {
            continue;
        }
        let passes = left.as_ref().map_or(read, |left| spend(left, read));
        if to.write_all(&bytes[..passes]).await.is_err() || passes < read {
            return;
        }
    }
}

/// Takes the `read` bytes of one connection from the budget `left`. Returns how many of them may
/// pass. If the budget does not suffice, the caller cuts this connection, and the other connections
/// get an unlimited budget (`usize::MAX`).
fn spend(left: &AtomicUsize, read: usize) -> usize {
    let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
        Some(if left == usize::MAX || left < read {
            usize::MAX
        } else {
            left - read
        })
    });
    before.unwrap().min(read)
}
