//! Tests that an inbox stream ends when its caller has lost a right.

use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::HeaderMap;
use tokio::sync::watch;

use super::*;
use crate::http::openapi::sample;
use crate::people::Permissions;
use crate::people::authenticator::{AuthError, Authenticator};
use crate::secret::Secret;
use crate::store::{Settings, Store};
use crate::task::time::Time;
use crate::world::{Clock, SystemClock};

/// A clock that only a test advances.
struct ManualClock(watch::Sender<Duration>);

impl ManualClock {
    fn advance(&self, by: Duration) {
        self.0.send_modify(|now| *now += by);
    }
}

#[async_trait::async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Time {
        SystemClock.now()
    }

    fn uptime(&self) -> Duration {
        *self.0.borrow()
    }

    async fn sleep(&self, time: Duration) {
        let (end, mut changes) = (self.uptime() + time, self.0.subscribe());
        while *changes.borrow_and_update() < end {
            changes.changed().await.unwrap();
        }
    }
}

/// An authenticator that ignores the key and returns the caller that the test has set. With `None`,
/// it refuses the key as unknown.
struct Keys(Mutex<Option<Caller>>);

impl Authenticator for Keys {
    fn authenticate(&self, _: &HeaderMap) -> Result<Caller, AuthError> {
        let known = self.0.lock().unwrap().clone();
        known.ok_or(AuthError::UnknownKey)
    }
}

fn with(permissions: Permissions) -> Caller {
    Caller {
        permissions,
        ..sample::approver()
    }
}

/// Returns the cases: the lost right, the caller afterwards, and whether the stream ends.
fn losses() -> [(&'static str, Option<Caller>, bool); 7] {
    let bob = sample::approver;
    let all = Permissions::ALL;
    [
        ("nothing", Some(bob()), false),
        ("the key", None, true),
        (
            "the group",
            Some(Caller {
                groups: Vec::new(),
                ..bob()
            }),
            true,
        ),
        (
            "the right to decide",
            Some(with(Permissions {
                decide: false,
                ..all
            })),
            true,
        ),
        (
            "the right to read",
            Some(with(Permissions { read: false, ..all })),
            true,
        ),
        (
            "the user",
            Some(Caller {
                user_id: "carol".into(),
                ..bob()
            }),
            true,
        ),
        (
            "the tenant",
            Some(Caller {
                tenant: "other".to_owned(),
                ..bob()
            }),
            true,
        ),
    ]
}

#[tokio::test]
async fn stream_ends_within_a_minute_of_the_loss_of_a_right_and_goes_on_without_a_loss() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        url: Secret::new(format!("sqlite://{}/inbox.db", folder.path().display())),
        ..Settings::default()
    };
    let store = Store::open(&settings, Arc::new(SystemClock)).await.unwrap();
    let quarter = Duration::from_secs(15);
    for (lost, caller, ends) in losses() {
        let clock = Arc::new(ManualClock(watch::Sender::new(Duration::ZERO)));
        let keys = Arc::new(Keys(Mutex::new(Some(sample::approver()))));
        let http = Arc::new(Http {
            store: store.clone(),
            clock: Arc::<ManualClock>::clone(&clock),
            authenticator: Arc::<Keys>::clone(&keys),
            ..crate::http::tests::http(false, &[])
        });
        let watcher = Watcher {
            caller: sample::approver(),
            headers: HeaderMap::new(),
            is_post_response: false,
        };
        let permit = http.stream_limiter.take(&watcher.caller, &http.settings);
        let opened = open(&http, watcher, InboxFilter::default(), permit.unwrap()).await;
        let mut parts = opened.unwrap().into_body().into_data_stream();
        let begin = parts.next().await.unwrap().unwrap();
        assert!(String::from_utf8_lossy(&begin).contains("event: inbox\n"));
        *keys.0.lock().unwrap() = caller;
        for _ in 0..3 {
            clock.advance(quarter);
            let part = parts.next().await.unwrap().unwrap();
            assert_eq!(&part[..], b":\n\n", "{lost}: a comment");
        }
        clock.advance(quarter);
        assert_eq!(parts.next().await.is_none(), ends, "{lost}");
    }
    store.close().await;
}
