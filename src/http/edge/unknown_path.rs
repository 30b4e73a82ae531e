//! The surface of a path at which no operation runs: an unknown path, a known path with an unknown
//! method, and any path while the service starts.

use std::sync::LazyLock;

use crate::http::server::operation::Surface;

/// The first and the last segment of an operation's path, and the operation's surface.
struct KnownPath {
    first: String,
    last: String,
    surface: Surface,
}

static KNOWN: LazyLock<Vec<KnownPath>> = LazyLock::new(|| {
    let operations = crate::http::operations().into_iter();
    operations
        .map(|operation| {
            let (path, _) = (operation.route)();
            let (first, last) = ends(&path);
            KnownPath {
                first: first.to_owned(),
                last: last.to_owned(),
                surface: operation.op.surface,
            }
        })
        .collect()
});

/// Returns the surface of the operations whose paths have the same first segment as `path`;
/// `Public` if no operation has this segment. Returns `Stream` only if a stream's path also has the
/// same last segment as `path`.
pub(super) fn surface(path: &str) -> Surface {
    let (first, last) = ends(path);
    let beside = || KNOWN.iter().filter(move |known| known.first == first);
    let is_stream = beside().any(|known| known.surface == Surface::Stream && known.last == last);
    if is_stream {
        return Surface::Stream;
    }
    beside()
        .map(|known| known.surface)
        .find(|surface| *surface != Surface::Stream)
        .unwrap_or(Surface::Public)
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
}
