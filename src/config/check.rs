//! Finds mistakes in `server`, `database`, `secrets`, `credentials`, `models` and `default_agent`,
//! and calls the checks of the other sections (`check_….rs`).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use url::Url;

use super::tree::{Kind, Node};
use super::{
    Config, check_gates, check_links, check_notify, check_parts, check_people, check_reach,
    check_rule_order, check_rules,
};
use crate::http::server::origin::is_local;
use crate::http::server::settings::{ServerSettings, address};
use crate::model::{self, Provider};
use crate::net::plain_http_url;
use crate::world::{Mistakes, earlier_key_in_other_case};

/// Checks all settings. If `public_url` is left out, derives it from the address to listen on,
/// unless the port is 0. If `default_agent` is left out and there is a single agent, this agent is
/// the default.
pub(crate) fn all(config: &mut Config, root: &Node, mistakes: &mut Mistakes) {
    server(config, root, mistakes);
    metrics(config, mistakes);
    connections(&config.server, mistakes);
    database(config, mistakes);
    secrets(config, mistakes);
    credentials(config, mistakes);
    models(config, root, mistakes);
    check_parts::tools(config, root, mistakes);
    check_parts::agents(config, root, mistakes);
    check_gates::all(config, root, mistakes);
    check_rules::rules(config, root, mistakes);
    check_rule_order::all(config, root, mistakes);
    check_people::all(config, root, mistakes);
    check_notify::all(config, root, mistakes);
    check_reach::all(config, root, mistakes);
    check_links::all(config, root, mistakes);
    default_agent(config, root, mistakes);
}

/// Checks that `metrics_listen` does not overlap the address of the main listener. If there are no
/// accounts, `metrics_listen` must be on loopback, at a host that the service answers to.
fn metrics(config: &Config, mistakes: &mut Mistakes) {
    let Some(text) = &config.server.metrics_listen else {
        return;
    };
    let place = ["server", "metrics_listen"];
    match address(text) {
        None => mistakes.add(
            &place,
            "expected an address and a port such as `127.0.0.1:9090`",
        ),
        Some(address)
            if config
                .server
                .address()
                .is_some_and(|main| overlap(main, address)) =>
        {
            mistakes.add(
                &place,
                "this is `server.listen`: give the metrics an address of their own",
            );
        }
        Some(address) if config.auth.is_none() && !address.ip().is_loopback() => {
            mistakes.add(
                &place,
                "without `auth` the service listens on loopback only, for its metrics too",
            );
        }
        Some(address) if config.auth.is_none() && !is_answered(address.ip()) => {
            mistakes.add(&place, UNANSWERED_HOST);
        }
        Some(_) => {}
    }
}

/// Whether two addresses have the same port and the same IP, so that the service cannot listen on
/// both. The unspecified IP (`0.0.0.0` or `::`) counts as the same as each IP of its family. Two
/// addresses with port 0 do not overlap, because the system chooses a free port for each address.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let same_family = one.is_ipv4() == other.is_ipv4();
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    let same_ip = one.ip() == other.ip() || (same_family && is_any);
    one.port() != 0 && one.port() == other.port() && same_ip
}

/// Reports a `max_connections` of 0. Warns if `max_connections` is at most `max_streams`: the
/// service keeps some connections free for requests other than event streams, so it would allow
/// fewer than `max_streams` event streams.
fn connections(server: &ServerSettings, mistakes: &mut Mistakes) {
    at_least_one(
        &["server", "max_connections"],
        server.max_connections,
        mistakes,
    );
    if (1..=server.max_streams).contains(&server.max_connections) {
        let detail = "there will be fewer event streams than `server.max_streams`: some connections are for the rest";
        mistakes.warn(&["server", "max_connections"], detail);
    }
}

fn server(config: &mut Config, root: &Node, mistakes: &mut Mistakes) {
    let address = config.server.address();
    listen(config, root, address, mistakes);
    let server = &mut config.server;
    if let Some(text) = &server.public_url {
        if let Some(normalized) = public_url(text) {
            server.public_url = Some(normalized);
        } else {
            let detail =
                "expected an address such as `https://host/path`, without user, query or fragment";
            mistakes.add(&["server", "public_url"], detail);
        }
    } else if let Some(address) = address.filter(|address| address.port() != 0) {
        server.public_url = Some(format!("http://{address}"));
    }
    frontends(server, mistakes);
    if server.wait > Duration::from_mins(5) {
        mistakes.add(&["server", "wait"], "a POST waits `300s` at most");
    }
    let counts = [
        ("max_running", server.max_running),
        ("max_streams", server.max_streams),
        ("max_streams_per_caller", server.max_streams_per_caller),
        ("max_waiting", server.max_waiting),
    ];
    for (key, count) in counts {
        at_least_one(&["server", key], count, mistakes);
    }
    positive(&["server", "stream_life"], server.stream_life, mistakes);
}

/// Whether a service without accounts, which checks the host of each request, answers to clients
/// that name this IP.
fn is_answered(ip: IpAddr) -> bool {
    // Unlike the text of an IP, the text of an address has an IPv6 in brackets, as a `Host` has.
    is_local(&SocketAddr::new(ip, 0).to_string())
}

const UNANSWERED_HOST: &str = "without `auth` the service answers only to the hosts `localhost`, `127.0.0.1` and `[::1]`: listen on `127.0.0.1` or `[::1]`";

/// Checks the address to listen on. Outside loopback, `auth` and a public URL are required. On
/// loopback without `auth`, the address must be a host that the service answers to.
fn listen(config: &Config, root: &Node, address: Option<SocketAddr>, mistakes: &mut Mistakes) {
    let server = &config.server;
    let public_url = root.at(&["server", "public_url"]);
    match address {
        None => mistakes.add(
            &["server", "listen"],
            "expected an address and a port such as `127.0.0.1:8080`",
        ),
        Some(address) if !address.ip().is_loopback() => {
            if config.auth.is_none() {
                let detail = "without `auth` the service listens on loopback only: name the people under `auth`, or listen on `127.0.0.1`";
                mistakes.add(&["server", "listen"], detail);
            }
            if server.public_url.is_none() && public_url.is_none_or(|node| !node.broken) {
                let detail = "`server.public_url` is needed when `listen` is not on loopback: links begin with it";
                mistakes.add(&["server", "listen"], detail);
            }
        }
        Some(address) if config.auth.is_none() && !is_answered(address.ip()) => {
            mistakes.add(&["server", "listen"], UNANSWERED_HOST);
        }
        Some(_) => {}
    }
}

/// Checks `request_url` and `cors_origins`, and turns the origins into lower case.
fn frontends(server: &mut ServerSettings, mistakes: &mut Mistakes) {
    if let Some(text) = &server.request_url {
        // Links contain `request_url` exactly as the file has it. So `request_url` must have no
        // character that a URL parser skips.
        let is_url = |text: &str| {
            !text.contains(|c: char| c.is_whitespace() || c.is_control())
                && parse_http_url(text).is_some()
        };
        let is_valid = text.contains("{request_id}") && is_url(&text.replace("{request_id}", "0"));
        if !is_valid {
            let detail = "expected an address with `{request_id}` in it, such as `https://host/approvals/{request_id}`";
            mistakes.add(&["server", "request_url"], detail);
        }
    }
    for (index, origin) in server.cors_origins.iter().enumerate() {
        let place = ["server", "cors_origins", &index.to_string()];
        let url = parse_http_url(origin);
        let parsed = url.as_ref().map(|url| url.origin().ascii_serialization());
        if parsed.as_ref() == Some(&origin.to_ascii_lowercase()) {
            continue;
        }
        let port = url.and_then(|url| url.port_or_known_default());
        let with_port = parsed
            .zip(port)
            .map(|(parsed, port)| format!("{parsed}:{port}"));
        let detail = if with_port == Some(origin.to_ascii_lowercase()) {
            "this is the default port of the scheme, which browsers leave out of an origin: leave it out"
        } else {
            "expected an origin such as `https://app.acme.com`: scheme, host and port, nothing after it"
        };
        mistakes.add(&place, detail);
    }
    for origin in &mut server.cors_origins {
        origin.make_ascii_lowercase();
    }
}

/// Parses an `http` or `https` URL with a host; `None` for any other text.
pub(crate) fn parse_http_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
}

/// Parses the public URL, and removes the slash at its end because links are appended. `None` if
/// the text is not an HTTP URL, or has a user, a query or a fragment.
fn public_url(text: &str) -> Option<String> {
    let url = plain_http_url(text).filter(|url| url.query().is_none())?;
    Some(url.as_str().trim_end_matches('/').to_owned())
}

pub(crate) fn at_least_one(place: &[&str], count: u32, mistakes: &mut Mistakes) {
    if count == 0 {
        mistakes.add(place, "expected 1 or more");
    }
}

pub(crate) fn positive(place: &[&str], duration: Duration, mistakes: &mut Mistakes) {
    if duration.is_zero() {
        mistakes.add(place, "expected more than 0");
    }
}

fn database(config: &Config, mistakes: &mut Mistakes) {
    let database = &config.database;
    let url = database.url.reveal();
    let is_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let is_sqlite = url
        .strip_prefix("sqlite:")
        .is_some_and(|rest| !rest.trim_start_matches('/').is_empty());
    if !(is_sqlite || (is_postgres && Url::parse(url).is_ok())) {
        mistakes.add(
            &["database", "url"],
            "expected `sqlite://<file>` or `postgres://user@host/db`",
        );
    }
    let max_connections = database.max_connections;
    at_least_one(&["database", "max_connections"], max_connections, mistakes);
    for (key, timeout) in [
        ("acquire_timeout", database.acquire_timeout),
        ("statement_timeout", database.statement_timeout),
    ] {
        positive(&["database", key], timeout, mistakes);
    }
}

fn secrets(config: &Config, mistakes: &mut Mistakes) {
    for (index, key) in config.secrets.keys.iter().enumerate() {
        let at = index.to_string();
        if !key.id.is_empty() {
            let place = ["secrets", "keys", &at, "id"];
            check_parts::check_name(&place, "a key", &key.id, mistakes);
            let mut earlier = config.secrets.keys.iter().take(index);
            if earlier.any(|other| other.id == key.id) {
                mistakes.add(&place, format!("the id `{}` occurs twice", key.id));
            }
        }
        if !key.key.reveal().is_empty() && key.bytes().is_none() {
            let detail = "expected 32 bytes in base64 (`openssl rand -base64 32`)";
            mistakes.add(&["secrets", "keys", &at, "key"], detail);
        }
    }
}

fn credentials(config: &Config, mistakes: &mut Mistakes) {
    if !config.credentials.is_empty() && config.secrets.keys.is_empty() {
        mistakes.add(
            &["credentials"],
            "credentials need a key under `secrets.keys`, which seals them",
        );
    }
    for (name, credential) in &config.credentials {
        check_parts::check_name(&["credentials", name], "a credential", name, mistakes);
        for field in credential.fields.keys() {
            let place = ["credentials", name, "fields", field];
            check_parts::check_name(&place, "a field", field, mistakes);
            // The names of two fields must not differ only in case. Otherwise the JSON Schema of
            // the credential's form would not compile, and the form would accept no answer.
            if let Some(twin) = earlier_key_in_other_case(&credential.fields, field) {
                let detail = format!("the fields `{twin}` and `{field}` differ only in case");
                mistakes.add(&place, detail);
            }
        }
        if let Some(expires_in) = credential.expires_in {
            positive(&["credentials", name, "expires_in"], expires_in, mistakes);
        }
    }
}

fn models(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    for (name, model) in &config.models {
        check_parts::check_name(&["models", name], "a model", name, mistakes);
        let Some(node) = root.at(&["models", name]).filter(|node| !node.broken) else {
            continue;
        };
        // The provider decides which other keys of a model are allowed. If the provider is missing
        // or not valid, these keys are not checked.
        let has_provider = node
            .get("provider")
            .is_some_and(|provider| !provider.broken);
        if !has_provider {
            continue;
        }
        check_provider_keys(name, model, node, mistakes);
    }
}

fn check_provider_keys(name: &str, model: &model::Settings, node: &Node, mistakes: &mut Mistakes) {
    let has = |key: &str| {
        node.get(key)
            .is_some_and(|value| !matches!(value.kind, Kind::Null))
    };
    let mut add =
        |below: &[&str], detail: &str| mistakes.add(&[&["models", name], below].concat(), detail);
    if model.provider == Provider::Scripted {
        if !has("script") {
            let detail = "`script` is missing: a scripted model has a file, or `builtin:refunds`";
            add(&[], detail);
        }
    } else {
        if !has("model") {
            add(&[], "`model` is missing: the model's name at its provider");
        }
        if has("script") {
            add(&["script"], "only a `scripted` model has a `script`");
        }
    }
    let is_unknown =
        |script: &String| script.starts_with("builtin:") && script != "builtin:refunds";
    if model.script.as_ref().is_some_and(is_unknown) {
        let detail = "there is one built-in script, `builtin:refunds`";
        add(&["script"], detail);
    }
    let is_no_url = |url: &String| parse_http_url(url).is_none();
    if model.base_url.as_ref().is_some_and(is_no_url) {
        let detail = "expected an address such as `https://api.openai.com/v1`";
        add(&["base_url"], detail);
    }
    for key in ["model", "base_url", "script"] {
        let is_empty = node
            .get(key)
            .is_some_and(|value| !value.broken && value.text().is_some_and(str::is_empty));
        if is_empty {
            add(&[key], &format!("`{key}` is empty"));
        }
    }
}

fn default_agent(config: &mut Config, root: &Node, mistakes: &mut Mistakes) {
    let node = root.get("default_agent");
    if node.is_some_and(|node| node.broken) {
        return;
    }
    if node.is_none() {
        let mut names = config.agents.keys();
        match (names.next(), names.next()) {
            (Some(only), None) => config.default_agent.clone_from(only),
            (Some(_), Some(_)) => {
                mistakes.add(
                    &[],
                    "`default_agent` is missing: it is needed when there are several agents",
                );
            }
            (None, _) => {}
        }
    } else if !config.agents.contains_key(&config.default_agent) {
        let name = &config.default_agent;
        let detail = if config.gates.contains_key(name) {
            format!("`{name}` is a gate: the default agent has a model")
        } else {
            format!("no agent is called `{name}`")
        };
        mistakes.add(&["default_agent"], detail);
    }
}
