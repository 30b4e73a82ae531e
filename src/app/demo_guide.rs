//! The guide that the demonstration prints at its start. The guide says that the model is scripted,
//! and shows commands to try.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use crate::config::Config;

const SCRIPTED: &str = "Its model is scripted: it plays a small refund conversation from a file, it is not a language model.";

/// The texts that the demonstration prints at each start. They always say that the model is
/// scripted.
pub(super) struct DemoGuide {
    /// The database that the guide shows with the commands; `None` if the guide has no commands.
    database: Option<String>,
}

impl DemoGuide {
    /// Returns the guide of the demonstration; `None` if the configuration is another.
    pub(super) fn of(config: &Config) -> Option<Self> {
        config.demo.then(|| Self {
            database: database(config),
        })
    }

    /// Prints the guide of a demonstration at `address`.
    pub(super) fn print(&self, address: SocketAddr) {
        let text = self.text(address);
        let _ = std::io::stdout().lock().write_all(text.as_bytes());
    }

    fn text(&self, address: SocketAddr) -> String {
        match &self.database {
            Some(database) => text_with_commands(address, database),
            None => format!(
                "Holdpoint runs its built-in demonstration at http://{address}.\n{SCRIPTED}\n"
            ),
        }
    }
}

/// Returns the name of the database that the guide shows. Returns `None` if the configuration has
/// accounts: the guide must then have no commands, because they have no key and would be refused.
fn database(config: &Config) -> Option<String> {
    if config.auth.is_some() {
        return None;
    }
    let url = config.database.url.reveal();
    let Some(file) = url.strip_prefix("sqlite:") else {
        // The URL may hold a password.
        return Some("Postgres".to_owned());
    };
    let file = Path::new(".").join(file.strip_prefix("//").unwrap_or(file));
    Some(format!("SQLite in {}", file.display()))
}

/// Returns the guide of a demonstration without accounts. The guide shows the service's `address`
/// and the name of its `database`.
fn text_with_commands(address: SocketAddr, database: &str) -> String {
    format!(
        "\
Holdpoint runs its built-in demonstration at http://{address} (no accounts, {database}).
Everybody on this machine is `local` and may approve; behind a reverse proxy everybody would be, so it answers through none.
{SCRIPTED}

1. Post a task. The refund is over 20, so it is held; the answer shows `pending`.

   curl -s http://{address}/v1/tasks -H 'Content-Type: application/json' -d '{{\"input\": \"Please refund 120 for order 17\"}}'

2. Approve it: POST to the `approval_url` of that answer, or open its `url` in a browser.

   curl -s -X POST http://{address}/resume/REQUEST_ID/approve

3. Look around: http://{address}/docs. A configuration of your own: `holdpoint init`, then
   `holdpoint serve --config holdpoint.yaml`.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;
    use crate::{people, store};

    #[test]
    fn guide_with_accounts_says_that_the_model_is_scripted_and_has_no_commands() {
        for (has_accounts, has_commands) in [(true, false), (false, true)] {
            let config = Config {
                demo: true,
                auth: has_accounts.then(people::settings::Settings::default),
                ..Config::default()
            };
            let address = SocketAddr::from(([127, 0, 0, 1], 8080));
            let text = DemoGuide::of(&config).unwrap().text(address);
            assert!(text.contains(SCRIPTED), "{text}");
            assert_eq!(text.contains("curl "), has_commands, "{text}");
            assert_eq!(text.contains("no accounts"), has_commands, "{text}");
        }
        assert!(DemoGuide::of(&Config::default()).is_none());
    }

    #[test]
    fn guide_is_for_a_demonstration_without_accounts_and_names_the_database_in_use() {
        let default = "sqlite://holdpoint.db";
        let postgres = "postgres://h:hunter2@db/h";
        for (demo, has_accounts, url, expected) in [
            (true, false, default, Some("SQLite in ./holdpoint.db")),
            (true, false, "sqlite:/srv/h.db", Some("SQLite in /srv/h.db")),
            (true, false, postgres, Some("Postgres")),
            (true, true, default, None),
            (false, false, default, None),
        ] {
            let config = Config {
                demo,
                auth: has_accounts.then(people::settings::Settings::default),
                database: store::Settings {
                    url: Secret::new(url.to_owned()),
                    ..store::Settings::default()
                },
                ..Config::default()
            };
            let found = DemoGuide::of(&config).and_then(|guide| guide.database);
            assert_eq!(found.as_deref(), expected, "{demo} {has_accounts} {url}");
        }
    }
}
