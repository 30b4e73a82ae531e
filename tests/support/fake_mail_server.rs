//! A mail server on loopback. It records every mail that it accepted and every line that clients
//! sent.

use std::sync::{Arc, Mutex};

use mail_parser::MessageParser;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Clone, Debug)]
pub struct Mail {
    /// The recipient in the SMTP envelope.
    pub to: String,
    pub raw: String,
    pub subject: String,
    pub id: String,
    pub text: String,
    pub html: String,
}

impl Mail {
    fn of(to: &str, raw: &str) -> Self {
        let parsed = MessageParser::default().parse(raw.as_bytes()).unwrap();
        let text = |found: Option<std::borrow::Cow<'_, str>>| found.unwrap().into_owned();
        Self {
            to: to.to_owned(),
            raw: raw.to_owned(),
            subject: parsed.subject().unwrap().to_owned(),
            id: parsed.message_id().unwrap().to_owned(),
            text: text(parsed.body_text(0)),
            html: text(parsed.body_html(0)),
        }
    }

    /// Returns the unfolded value of a header, or an empty text if the mail has no such header.
    pub fn header(&self, name: &str) -> String {
        let parsed = MessageParser::default().parse(self.raw.as_bytes());
        let value = parsed
            .unwrap()
            .header_raw(name.to_owned())
            .unwrap_or("")
            .to_owned();
        value.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    pub fn headers(&self) -> Vec<String> {
        let parsed = MessageParser::default().parse(self.raw.as_bytes()).unwrap();
        let names = parsed
            .headers_raw()
            .map(|(name, _)| name.to_ascii_lowercase());
        names.collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailBehaviour {
    Take,
    /// The mail is accepted, and the connection ends after the reply.
    Close,
    /// The mail is accepted, and the connection ends before the reply.
    Cut,
    /// The server accepts the first mail of a connection and replies. It also accepts the second
    /// mail, but ends the connection before the reply.
    CutSecond,
    /// The mail is accepted, and no reply is sent.
    Hang,
    /// The server refuses every recipient with this SMTP reply code.
    Refuse(u16),
    /// The server refuses every recipient with this SMTP reply code, and sends nothing more.
    RefuseAndHang(u16),
    /// The server refuses each mail whose text contains this text with the SMTP reply code 554.
    RefuseText(&'static str),
    /// The server refuses the sign-in. Its reply repeats the client's whole `AUTH` line.
    RefuseSignIn,
    /// The only sign-in on offer is CRAM-MD5.
    OfferCramMd5,
}

#[derive(Clone)]
pub struct FakeMailServer {
    pub port: u16,
    inner: Arc<Inner>,
}

struct Inner {
    then: Mutex<MailBehaviour>,
    offers_tls: Mutex<bool>,
    heard: Mutex<Vec<String>>,
    after_starttls: Mutex<Vec<u8>>,
    ledger: watch::Sender<Vec<Mail>>,
}

impl FakeMailServer {
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let inner = Arc::new(Inner {
            then: Mutex::new(MailBehaviour::Take),
            offers_tls: Mutex::new(false),
            heard: Mutex::default(),
            after_starttls: Mutex::default(),
            ledger: watch::Sender::new(Vec::new()),
        });
        let shared = Arc::clone(&inner);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let inner = Arc::clone(&shared);
                tokio::spawn(async move { inner.converse(stream).await });
            }
        });
        Self { port, inner }
    }

    pub fn then(&self, then: MailBehaviour) {
        *self.inner.then.lock().unwrap() = then;
    }

    /// Offers STARTTLS, but never begins TLS. After the client's STARTTLS, the server sends the
    /// replies to this command and to all commands that send a mail, unencrypted and all at once,
    /// as an attacker on the network could. After these replies, the server sends nothing more.
    pub fn offer_tls(&self) {
        *self.inner.offers_tls.lock().unwrap() = true;
    }

    pub fn all(&self) -> Vec<Mail> {
        self.inner.ledger.borrow().clone()
    }

    pub fn to(&self, address: &str) -> Vec<Mail> {
        let mut all = self.all();
        all.retain(|mail| mail.to == address);
        all
    }

    /// Returns every line that clients sent, except the content of mails and the bytes that
    /// followed STARTTLS.
    pub fn heard(&self) -> Vec<String> {
        self.inner.heard.lock().unwrap().clone()
    }

    /// Returns the bytes that the client sent after STARTTLS on the only connection that used it.
    pub fn after_starttls(&self) -> Vec<u8> {
        self.inner.after_starttls.lock().unwrap().clone()
    }

    pub async fn reached(&self, count: usize) -> Vec<Mail> {
        let mut ledger = self.inner.ledger.subscribe();
        let reached = ledger.wait_for(|all| all.len() >= count).await;
        reached.unwrap().clone()
    }
}

impl Inner {
    async fn converse(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        say(&mut stream, "220 fake\r\n").await?;
        let mut to = String::new();
        let mut mails = 0;
        loop {
            let line = hear(&mut stream).await?;
            self.heard.lock().unwrap().push(line.clone());
            let word = line.split([' ', ':']).next().unwrap_or("").to_uppercase();
            let then = *self.then.lock().unwrap();
            let answer = match (word.as_str(), then) {
                ("EHLO", _) if *self.offers_tls.lock().unwrap() => "250-fake\r\n250 STARTTLS\r\n",
                ("EHLO", MailBehaviour::OfferCramMd5) => "250-fake\r\n250 AUTH CRAM-MD5\r\n",
                ("EHLO", _) => "250-fake\r\n250 AUTH PLAIN\r\n",
                ("STARTTLS", _) => {
                    let answers = "220 go on\r\n250 fake\r\n250 fine\r\n250 fine\r\n354 go on\r\n250 taken\r\n";
                    say(&mut stream, answers).await?;
                    loop {
                        let byte = stream.read_u8().await.ok()?;
                        self.after_starttls.lock().unwrap().push(byte);
                    }
                }
                ("AUTH", MailBehaviour::RefuseSignIn) => {
                    say(&mut stream, &format!("535 no: {line}\r\n")).await?;
                    continue;
                }
                ("AUTH", _) => "235 welcome\r\n",
                ("RCPT", MailBehaviour::Refuse(code)) => {
                    say(&mut stream, &format!("{code} no: {line}\r\n")).await?;
                    continue;
                }
                ("RCPT", MailBehaviour::RefuseAndHang(code)) => {
                    say(&mut stream, &format!("{code} no\r\n")).await?;
                    return std::future::pending().await;
                }
                ("RCPT", _) => {
                    to = line.split(['<', '>']).nth(1).unwrap_or("").to_owned();
                    "250 fine\r\n"
                }
                ("DATA", _) => {
                    say(&mut stream, "354 go on\r\n").await?;
                    let mut raw = String::new();
                    loop {
                        let line = hear(&mut stream).await?;
                        if line == "." {
                            break;
                        }
                        raw.push_str(line.strip_prefix('.').unwrap_or(&line));
                        raw.push_str("\r\n");
                    }
                    let mail = Mail::of(&to, &raw);
                    if let MailBehaviour::RefuseText(text) = then
                        && mail.text.contains(text)
                    {
                        say(&mut stream, "554 no\r\n").await?;
                        continue;
                    }
                    self.ledger.send_modify(|all| all.push(mail));
                    mails += 1;
                    match then {
                        MailBehaviour::Close => {
                            say(&mut stream, "250 taken\r\n").await?;
                            return None;
                        }
                        MailBehaviour::Cut => return None,
                        MailBehaviour::CutSecond if mails == 2 => return None,
                        MailBehaviour::Hang => std::future::pending::<()>().await,
                        MailBehaviour::Take
                        | MailBehaviour::CutSecond
                        | MailBehaviour::Refuse(_)
                        | MailBehaviour::RefuseAndHang(_)
                        | MailBehaviour::RefuseText(_)
                        | MailBehaviour::RefuseSignIn
                        | MailBehaviour::OfferCramMd5 => {}
                    }
                    "250 taken\r\n"
                }
                ("QUIT", _) => "221 bye\r\n",
                _ => "250 fine\r\n",
            };
            say(&mut stream, answer).await?;
        }
    }
}

async fn say(stream: &mut BufReader<TcpStream>, text: &str) -> Option<()> {
    stream.get_mut().write_all(text.as_bytes()).await.ok()
}

async fn hear(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = Vec::new();
    let read = stream.read_until(b'\n', &mut line).await.ok()?;
    let line = String::from_utf8_lossy(&line);
    (read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
}
