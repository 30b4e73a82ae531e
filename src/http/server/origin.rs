//! Checks whether a web page may send a request that changes something in the service, so that a
//! foreign page cannot approve a call. The service refuses the request if the origin of the page is
//! neither the service's own nor in `cors_origins`. The refusal comes before the service reads the
//! credentials. A service without accounts (no `auth` in the configuration) answers only requests
//! that name a loopback host and come through no proxy. Health checks are exempt.

use http::header::{HOST, HeaderName, HeaderValue, ORIGIN};
use http::{HeaderMap, Method, Uri, Version};
use url::Url;

#[derive(Clone, Debug, PartialEq, Eq)]
struct WebOrigin {
    scheme: String,
    host: String,
    port: u16,
}

impl WebOrigin {
    fn parse(text: &str) -> Option<Self> {
        if text.contains(['@', '?', '#', '\\', ' ', '\t']) {
            return None;
        }
        let url = Url::parse(text).ok()?;
        if !matches!(url.scheme(), "http" | "https") {
            return None;
        }
        Some(Self {
            scheme: url.scheme().to_owned(),
            host: url.host_str()?.to_owned(),
            port: url.port_or_known_default()?,
        })
    }
}

/// The configured origins whose pages may send requests that change something. Pages of the
/// service's own host may always send such requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    public: Option<WebOrigin>,
    allowed: Vec<WebOrigin>,
}

impl Origins {
    #[must_use]
    pub(crate) fn new(public_url: &str, cors_origins: &[String]) -> Self {
        Self {
            public: WebOrigin::parse(public_url),
            allowed: cors_origins
                .iter()
                .filter_map(|origin| WebOrigin::parse(origin))
                .collect(),
        }
    }

    /// Returns whether the request may proceed. A request whose method changes nothing may proceed.
    /// Any other request that has an `Origin` may proceed if the `Origin` is the service's own
    /// origin or a configured origin. A request without `Origin` may proceed unless its
    /// `Sec-Fetch-Site` says that a page of another origin sent the request.
    #[must_use]
    pub(crate) fn may_change(&self, method: &Method, headers: &HeaderMap, uri: &Uri) -> bool {
        if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
            return true;
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => !headers
                .get_all("sec-fetch-site")
                .iter()
                .any(|site| matches!(site.as_bytes(), b"cross-site" | b"same-site")),
            (Some(origin), None) => {
                let is_known = |origin: WebOrigin| {
                    self.is_own(&origin, headers, uri) || self.allowed.contains(&origin)
                };
                origin_in(origin).is_some_and(is_known)
            }
            (Some(_), Some(_)) => false,
        }
    }

    /// Returns whether the first `Origin` of the request is an origin of this service's pages. The
    /// origins in `cors_origins` do not count as such.
    #[must_use]
    pub(crate) fn is_own_page(&self, headers: &HeaderMap, uri: &Uri) -> bool {
        let origin = headers.get(ORIGIN).and_then(origin_in);
        origin.is_some_and(|origin| self.is_own(&origin, headers, uri))
    }

    fn is_own(&self, origin: &WebOrigin, headers: &HeaderMap, uri: &Uri) -> bool {
        is_own_origin(origin, headers, uri) || self.public.as_ref() == Some(origin)
    }

    /// Returns whether the request has exactly one `Origin` header, with an origin in
    /// `cors_origins`. If so, the response gets the CORS headers.
    #[must_use]
    pub(crate) fn allows_cors(&self, headers: &HeaderMap) -> bool {
        let mut origins = headers.get_all(ORIGIN).iter();
        let origin = origins.next().and_then(origin_in);
        origin.is_some_and(|origin| self.allowed.contains(&origin)) && origins.next().is_none()
    }
}

fn origin_in(header: &HeaderValue) -> Option<WebOrigin> {
    header_origin(header.to_str().ok()?)
}

/// Parses the value of an `Origin` header. `None` if the value is not an origin of `http` or
/// `https`, or has a path, even `/`.
fn header_origin(text: &str) -> Option<WebOrigin> {
    let (_, rest) = text.split_once("://")?;
    if rest.contains('/') {
        None
    } else {
        WebOrigin::parse(text)
    }
}

fn is_own_origin(origin: &WebOrigin, headers: &HeaderMap, uri: &Uri) -> bool {
    authority(headers, uri)
        .and_then(|host| header_origin(&format!("{}://{host}", origin.scheme)))
        .is_some_and(|own| own == *origin)
}

/// Returns the host that the request is for; `None` when the request names no host or several
/// hosts.
fn authority<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next(), uri.authority()) {
        (Some(host), None, None) => host.to_str().ok(),
        (Some(host), None, Some(authority)) => host
            .to_str()
            .ok()
            .filter(|host| host.eq_ignore_ascii_case(authority.as_str())),
        (None, None, Some(authority)) => Some(authority.as_str()),
        (_, _, _) => None,
    }
}

/// The headers that proxies add, besides `X-Forwarded-…`.
const PROXY_HEADERS: [&str; 6] = [
    "forwarded",
    "via",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
    "x-original-forwarded-for",
];

/// Returns why a service without accounts refuses the request; `None` if the service accepts the
/// request. Through a proxy, every client would act as the user `local`, so signs of a proxy are
/// refused. An HTTP version other than 1.1 is also such a sign, because nginx forwards requests
/// with HTTP/1.0 by default. The host must be a loopback name, because a web page can point its own
/// host name to this machine (DNS rebinding).
#[must_use]
pub(crate) fn refusal_without_accounts(
    headers: &HeaderMap,
    uri: &Uri,
    version: Version,
) -> Option<&'static str> {
    let added = |name: &HeaderName| {
        PROXY_HEADERS.contains(&name.as_str()) || name.as_str().starts_with("x-forwarded-")
    };
    if headers.keys().any(added) {
        return Some(
            "Without accounts the service refuses requests through a proxy: the request has a header that proxies add. \
             Configure auth.api_keys.",
        );
    }
    if version != Version::HTTP_11 {
        return Some(
            "Without accounts the service refuses requests through a proxy: the request is not HTTP/1.1. Configure \
             auth.api_keys.",
        );
    }
    if authority(headers, uri).is_some_and(is_local) {
        return None;
    }
    Some(
        "Without accounts the service answers only to the host names localhost, 127.0.0.1 and [::1]. Configure \
         auth.api_keys to reach it by another.",
    )
}

/// Whether `host`, with or without a port, is a host that a service without accounts answers to.
#[must_use]
pub(crate) fn is_local(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    };
    let port_fits = port
        .is_none_or(|port| port.parse::<u16>().is_ok() && port.bytes().all(|b| b.is_ascii_digit()));
    port_fits && (name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1" || name == "[::1]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                value.parse().unwrap(),
            );
        }
        headers
    }

    #[test]
    fn change_is_allowed_only_from_known_origins() {
        let origins = Origins::new(
            "https://hold.example/base",
            &["https://app.example".into(), "http://dev:3000/".into()],
        );
        let host = ("host", "127.0.0.1:8080");
        let cases: &[(&[(&str, &str)], bool)] = &[
            (&[], true),
            (&[("origin", "http://127.0.0.1:8080")], true),
            (&[("origin", "https://127.0.0.1:8080")], true),
            (&[("origin", "http://127.0.0.1:8081")], false),
            (&[("origin", "http://127.0.0.1")], false),
            (&[("origin", "http://localhost:8080")], false),
            (&[("origin", "https://hold.example")], true),
            (&[("origin", "https://hold.example:443")], true),
            (&[("origin", "http://hold.example")], false),
            (&[("origin", "https://hold.example/base")], false),
            (&[("origin", "https://app.example")], true),
            (&[("origin", "https://APP.example")], true),
            (&[("origin", "http://dev:3000")], true),
            (&[("origin", "https://app.example.evil.com")], false),
            (&[("origin", "https://evil.com")], false),
            (&[("origin", "null")], false),
            (&[("origin", "")], false),
            (&[("origin", "file://")], false),
            (&[("origin", "https://app.example https://evil.com")], false),
            (
                &[
                    ("origin", "https://app.example"),
                    ("origin", "https://evil.com"),
                ],
                false,
            ),
            (
                &[
                    ("origin", "https://app.example"),
                    ("sec-fetch-site", "cross-site"),
                ],
                true,
            ),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "same-origin")], true),
            (&[("sec-fetch-site", "none")], true),
        ];
        for (pairs, expected) in cases {
            let mut all = vec![host];
            all.extend_from_slice(pairs);
            let found = origins.may_change(
                &Method::POST,
                &headers(&all),
                &Uri::from_static("/v1/tasks"),
            );
            assert_eq!(found, *expected, "{pairs:?}");
        }
        let foreign = headers(&[
            host,
            ("origin", "https://evil.com"),
            ("sec-fetch-site", "cross-site"),
        ]);
        assert!(origins.may_change(&Method::GET, &foreign, &Uri::from_static("/")));
        assert!(!origins.may_change(&Method::DELETE, &foreign, &Uri::from_static("/")));
    }

    #[test]
    fn own_host_is_accepted_with_the_default_port_of_its_scheme() {
        let origins = Origins::new("http://127.0.0.1:8080", &[]);
        let uri = Uri::from_static("/v1/tasks");
        let own = headers(&[
            ("host", "hold.internal"),
            ("origin", "https://hold.internal"),
        ]);
        assert!(origins.may_change(&Method::POST, &own, &uri));
        let two = headers(&[("host", "a"), ("host", "evil"), ("origin", "http://evil")]);
        assert!(!origins.may_change(&Method::POST, &two, &uri));
    }

    fn refused(pairs: &[(&str, &str)], uri: &Uri) -> Option<&'static str> {
        refusal_without_accounts(&headers(pairs), uri, Version::HTTP_11)
    }

    #[test]
    fn request_to_a_name_other_than_loopback_is_refused_without_accounts() {
        let uri = Uri::from_static("/v1/tasks");
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:8080",
        ] {
            assert_eq!(refused(&[("host", host)], &uri), None, "{host}");
        }
        for host in [
            "evil.com",
            "localhost.evil.com",
            "127.0.0.1.nip.io",
            "localhost.",
            "127.0.0.2",
            "[::2]",
            "::1",
            "",
            "0.0.0.0",
            "localhost:",
            "localhost:80:80",
            "localhost:+80",
            "localhost@evil",
            "127.0.0.1:99999",
        ] {
            assert!(refused(&[("host", host)], &uri).is_some(), "{host}");
        }
        assert!(refused(&[], &uri).is_some());
        let absolute = "http://evil.com/v1/tasks".parse().unwrap();
        assert!(refused(&[("host", "localhost")], &absolute).is_some());
    }

    #[test]
    fn request_through_a_proxy_is_refused_without_accounts() {
        let uri = Uri::from_static("/v1/tasks");
        for name in [
            "Forwarded",
            "X-Forwarded-For",
            "X-Forwarded-Host",
            "X-Forwarded-Anything",
            "Via",
            "X-Real-IP",
            "CF-Connecting-IP",
            "True-Client-IP",
            "X-Original-Forwarded-For",
        ] {
            let why = refused(&[("host", "localhost"), (name, "")], &uri).unwrap_or_default();
            assert!(why.contains("through a proxy"), "{name}: {why}");
        }
        assert_eq!(
            refused(
                &[
                    ("host", "localhost"),
                    ("x-request-id", "a"),
                    ("x-real-ipx", "1.2.3.4")
                ],
                &uri
            ),
            None
        );
        let local = headers(&[("host", "localhost")]);
        for version in [
            Version::HTTP_09,
            Version::HTTP_10,
            Version::HTTP_2,
            Version::HTTP_3,
        ] {
            assert!(
                refusal_without_accounts(&local, &uri, version)
                    .is_some_and(|why| why.contains("HTTP/1.1")),
                "{version:?}"
            );
        }
    }
}
