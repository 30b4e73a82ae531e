//! The guide that a start of the demonstration prints: the commands to try.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use crate::config::Config;

/// Returns the name of the database that the guide shows. Returns `None` if the guide must not be
/// printed: the configuration is not the demonstration, or it has accounts, so that the guide's
/// commands, which have no key, would be refused.
pub(super) fn database(config: &Config) -> Option<String> {
    if !config.demo || config.auth.is_some() {
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

/// Prints the guide of a demonstration at `address`, whose database is called `database`.
pub(super) fn print(address: SocketAddr, database: &str) {
    let text = format!(
        "\
Holdpoint runs its built-in demonstration at http://{address} (no accounts, {database}).
Everybody on this machine is `local` and may approve; behind a reverse proxy everybody would be, so it answers through none.
Its model is scripted: it plays a small refund conversation from a file, it is not a language model.

1. Post a task. The refund is over 20, so it is held; the answer shows `pending`.

   curl -s http://{address}/v1/tasks -H 'Content-Type: application/json' -d '{{\"input\": \"Please refund 120 for order 17\"}}'

2. Approve it: POST to the `approval_url` of that answer, or open its `url` in a browser.

   curl -s -X POST http://{address}/resume/REQUEST_ID/approve

3. Look around: http://{address}/docs. A configuration of your own: `holdpoint init`, then
   `holdpoint serve --config holdpoint.yaml`.
"
    );
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;
    use crate::{people, store};

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
            let found = database(&config);
            assert_eq!(found.as_deref(), expected, "{demo} {has_accounts} {url}");
        }
    }
}
