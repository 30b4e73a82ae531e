//! Finds mistakes in `notify.links` that concern other sections: the sealing key and the public
//! URL.

use url::Url;

use super::Config;
use super::check::{parse_http_url, positive};
use super::tree::Node;
use crate::net::is_loopback;
use crate::people::link::LinkRight;
use crate::world::Mistakes;

/// Checks that there is a key to seal links, and that links are valid for more than 0 seconds.
/// Links with `may: decide` must not be opened over plain HTTP, except on loopback.
pub(crate) fn all(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    let Some(links) = &config.notify.links else {
        return;
    };
    let place = ["notify", "links"];
    let can_be_sealed =
        root.get("secrets").is_some_and(|node| node.broken) || !config.secrets.keys.is_empty();
    if !can_be_sealed {
        let detail = "links need a key under `secrets.keys`, which seals them";
        mistakes.add(&place, detail);
    }
    let url = config.server.public_url.as_deref().and_then(parse_http_url);
    let is_readable = |url: Url| url.scheme() == "http" && !is_loopback(&url);
    if links.may == LinkRight::Decide && url.is_some_and(is_readable) {
        let detail = "a link that decides needs `server.public_url` with `https`: on the way of plain HTTP others \
                      can read and use it";
        mistakes.add(&[&place[..], &["may"]].concat(), detail);
    }
    positive(
        &[&place[..], &["expires_in"]].concat(),
        links.expires_in,
        mistakes,
    );
}
