//! `/times.js`: a script that shows the times of a page in the reader's zone. Without the script, a
//! page shows them in UTC.

use axum::response::Response;

use super::follow;
use crate::http::server::operation::Op;

pub(crate) const OP: Op = Op::public("get_times_script", &[]);

const SCRIPT: &str = include_str!("times.js");

pub(crate) async fn get_times_script() -> Response {
    follow::script_response(SCRIPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_makes_no_markup_from_text() {
        follow::assert_makes_no_markup(SCRIPT);
    }
}
