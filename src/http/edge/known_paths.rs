//! The paths of the operations, read from the table of operations. `edge/` compares the path of a
//! request with these paths while the operation of the request is not known. The operation stays
//! unknown for an unknown path or method. While the service starts, it stays unknown for every path
//! but the health checks.

use std::iter::successors;
use std::sync::LazyLock;

use utoipa::openapi::HttpMethod;

use crate::http::server::operation::{AuthClass, Op, Surface, fixed_start};

struct KnownPath {
    /// The path of the operation's route, with the parameters' names in braces.
    route: String,
    op: &'static Op,
    has_get: bool,
}

static KNOWN: LazyLock<Vec<KnownPath>> = LazyLock::new(|| {
    let operations = crate::http::operations().into_iter();
    operations
        .map(|operation| KnownPath {
            route: (operation.route)().0,
            op: operation.op,
            has_get: (operation.methods)().contains(&HttpMethod::Get),
        })
        .collect()
});

/// Returns the surface for a path whose operation is not known. The function looks at the
/// operations whose paths have the same first segment as `path`. If an event stream among them also
/// has the same last segment, the surface is `Stream`. Otherwise the surface is that of the other
/// operations among them, or `Public` if there are none.
pub(super) fn surface(path: &str) -> Surface {
    let (first, last) = ends(path);
    let beside = || {
        KNOWN
            .iter()
            .filter(move |known| ends(&known.route).0 == first)
    };
    let is_stream =
        beside().any(|known| known.op.surface == Surface::Stream && ends(&known.route).1 == last);
    if is_stream {
        return Surface::Stream;
    }
    beside()
        .map(|known| known.op.surface)
        .find(|surface| *surface != Surface::Stream)
        .unwrap_or(Surface::Public)
}

/// Returns whether `path` begins with the fixed part of a sealed link's path, `/l/`.
pub(super) fn is_link(path: &str) -> bool {
    let links = KNOWN
        .iter()
        .filter(|known| known.op.auth == AuthClass::Link);
    links
        .map(|known| fixed_start(&known.route))
        .any(|start| path.starts_with(start))
}

/// Returns the path of `op` up to its first parameter; `None` if `op` is not in the table.
pub(super) fn start_of(op: &Op) -> Option<&'static str> {
    let known = KNOWN.iter().find(|known| known.op.id == op.id);
    known.map(|known| fixed_start(&known.route))
}

/// Returns the path of the page to which a reader can return after a problem at `path`. If `path`
/// is a page, returns `path` with its query. If a form posts to `path`, returns the nearest page
/// above `path`, because this page has the form. `None` if there is no page above.
pub(super) fn page_path(path: &str) -> Option<&str> {
    let own = path.split('?').next().unwrap_or_default();
    if is_page(own) {
        return Some(path);
    }
    let mut paths_above = successors(parent(own), |path| parent(path));
    paths_above.find(|path| is_page(path))
}

/// Returns the path without its last segment; `None` for a path of one segment.
fn parent(path: &str) -> Option<&str> {
    let (parent, _) = path.rsplit_once('/')?;
    (!parent.is_empty()).then_some(parent)
}

fn is_page(path: &str) -> bool {
    KNOWN.iter().any(|known| {
        known.has_get && known.op.surface == Surface::Page && matches_route(path, &known.route)
    })
}

/// Returns whether `path` has the segments of `route`, where a parameter stands for any segment.
fn matches_route(path: &str, route: &str) -> bool {
    path.split('/').count() == route.split('/').count()
        && path
            .split('/')
            .zip(route.split('/'))
            .all(|(found, known)| known.starts_with('{') || known == found)
}

/// Returns the first and the last segment of a path.
fn ends(path: &str) -> (&str, &str) {
    let first = path.split('/').nth(1).unwrap_or_default();
    (first, path.rsplit('/').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_below_the_same_segment_have_the_same_surface() {
        for operation in crate::http::operations() {
            let (path, _) = (operation.route)();
            assert_eq!(surface(&path), operation.op.surface, "{path}");
        }
    }

    #[test]
    fn unknown_path_has_the_surface_of_the_paths_beside_it() {
        for (path, expected) in [
            ("/v1", Surface::Api),
            ("/v1/", Surface::Api),
            ("/v1/nothing", Surface::Api),
            ("/v1/nothing/events", Surface::Stream),
            ("/v1/events/", Surface::Api),
            ("/mcp", Surface::Api),
            ("/mcp/gate/events", Surface::Api),
            ("/resume", Surface::Page),
            ("/resume/a/b", Surface::Page),
            ("/l", Surface::Page),
            ("/l/", Surface::Page),
            ("/sign-in/x", Surface::Page),
            ("/sign-out/x", Surface::Page),
            ("/inbox/nothing", Surface::Page),
            ("/tasks/a/b", Surface::Page),
            ("/grants/a/b", Surface::Page),
            ("/v10", Surface::Public),
            ("/inboxes", Surface::Public),
            ("/inbox.js", Surface::Public),
            ("/follow.js", Surface::Public),
            ("/times.js", Surface::Public),
            ("/docs/nothing", Surface::Public),
            ("/nowhere", Surface::Public),
            ("//v1", Surface::Public),
            ("/", Surface::Public),
            ("*", Surface::Public),
            ("", Surface::Public),
        ] {
            assert_eq!(surface(path), expected, "{path}");
        }
    }

    #[test]
    fn only_paths_below_the_segment_of_links_are_links() {
        for (path, expected) in [
            ("/l/k1.abc", true),
            ("/l/", true),
            ("/l/a/b?c", true),
            ("/l", false),
            ("/l?c", false),
            ("/link/x", false),
            ("/v1/l/x", false),
            ("*", false),
            ("", false),
        ] {
            assert_eq!(is_link(path), expected, "{path}");
        }
    }

    #[test]
    fn problem_of_a_form_leads_to_the_page_with_the_form() {
        for (path, expected) in [
            ("/grants/a", Some("/grants")),
            ("/grants/a?b=/c", Some("/grants")),
            ("/tasks/a/cancel", Some("/tasks/a")),
            ("/tasks/a", Some("/tasks/a")),
            ("/tasks?status=paused", Some("/tasks?status=paused")),
            ("/resume/a", Some("/resume/a")),
            ("/resume/a/approve", Some("/resume/a/approve")),
            ("/resume/a?b=/c/d", Some("/resume/a?b=/c/d")),
            ("/l/a", Some("/l/a")),
            ("/sign-out", None),
            ("/nowhere/a", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(page_path(path), expected, "{path}");
        }
    }

    #[test]
    fn start_of_a_path_ends_before_its_first_parameter() {
        use crate::http::pages::{resume, sign_in};

        assert_eq!(start_of(&resume::show::OP), Some("/resume/"));
        assert_eq!(start_of(&sign_in::show::OP), Some("/sign-in"));
    }
}
