//! Serves the OpenAPI document at `/openapi.json`, and at `/docs` a page that shows the document.
//! The binary contains the page's assets (such as scripts and styles) in compressed form. The
//! assets load nothing from other hosts.

use std::borrow::Cow;
use std::io::Read as _;
use std::sync::{Arc, LazyLock};

use axum::response::{IntoResponse, Response};
use flate2::read::GzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use utoipa_swagger_ui::{Config, SwaggerFile, serve};

use super::openapi_json;
use crate::http::pages::layout::HtmlPage;
use crate::http::server::accept::takes_gzip;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};

pub(crate) const OPENAPI: Op = Op::public("get_openapi", &[]);
pub(crate) const DOCS: Op = Op::public("get_docs", &[]);
pub(crate) const ASSETS: Op = Op::public("get_docs_asset", &[Code::NotFound]);

const PAGE_CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

static DOCUMENT: LazyLock<String> = LazyLock::new(openapi_json);

/// The configuration of the page at `/docs`. The page loads the OpenAPI document from an address
/// relative to `/docs`, and calls no external validator.
static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    Arc::new(
        Config::new(["openapi.json"])
            .validator_url("none")
            .try_it_out_enabled(false),
    )
});

/// Get the OpenAPI document of this API
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "get_openapi", tag = "service", security(()),
    responses((status = 200, body = std::collections::BTreeMap<String, serde_json::Value>, description = "OpenAPI 3.1"))
)]
pub(crate) async fn get_openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

/// Browse the OpenAPI document
#[utoipa::path(
    get, path = "/docs", operation_id = "get_docs", tag = "service", security(()),
    responses(HtmlPage)
)]
pub(crate) async fn get_docs() -> Result<Response, Problem> {
    let page = String::from_utf8_lossy(&decompressed(asset("index.html")?)?)
        .replace("=\"./", "=\"docs/")
        .replace("=\"index.css", "=\"docs/index.css");
    let head = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, PAGE_CONTENT_POLICY),
    ];
    Ok((head, page).into_response())
}

/// Serves an asset of the page. A client that accepts gzip gets the compressed bytes from the
/// binary unchanged. Requests for `index.html` are redirected to `/docs`.
///
/// # Errors
/// `not_found` if there is no such asset.
pub(crate) async fn get_docs_asset(
    PathId(name): PathId<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if name == "index.html" {
        return Ok((StatusCode::PERMANENT_REDIRECT, [(LOCATION, "../docs")]).into_response());
    }
    let file = asset(&name)?;
    let head = [
        (CONTENT_TYPE, file.content_type.clone()),
        (VARY, "Accept-Encoding".to_owned()),
    ];
    if file.gzpipped && takes_gzip(&headers) {
        let gzip = [(CONTENT_ENCODING, HeaderValue::from_static("gzip"))];
        return Ok((head, gzip, file.bytes).into_response());
    }
    Ok((head, decompressed(file)?).into_response())
}

fn asset(name: &str) -> Result<SwaggerFile<'static>, Problem> {
    let found = serve(name, CONFIG.clone()).ok().flatten();
    found.ok_or_else(Problem::not_found)
}

fn decompressed(file: SwaggerFile<'static>) -> Result<Cow<'static, [u8]>, Problem> {
    if !file.gzpipped {
        return Ok(file.bytes);
    }
    let mut bytes = Vec::new();
    GzDecoder::new(file.bytes.as_ref())
        .read_to_end(&mut bytes)
        .map_err(|_| Problem::internal("a file of the documentation is damaged"))?;
    Ok(bytes.into())
}

/// Redirects `/docs/` to `/docs`.
pub(crate) async fn get_docs_folder() -> Response {
    (StatusCode::PERMANENT_REDIRECT, [(LOCATION, "../docs")]).into_response()
}
