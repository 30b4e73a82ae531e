//! The texts of errors for people. The API shows a text in English. A page shows a translation in
//! the reader's language, and finds the translation by the text's code.

use std::fmt;

/// The text of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    /// A text that the pages translate.
    Coded(DetailCode),
    /// A text in English, without a translation.
    Text(String),
}

macro_rules! codes {
    ($($name:ident = $english:literal;)*) => {
        /// The texts of errors that the pages translate, each with its text in English.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DetailCode {
            $($name,)*
            /// A value may have at most this number of bytes.
            AtMostBytes(usize),
        }

        impl DetailCode {
            /// All codes but those whose text contains a value, such as `AtMostBytes`.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];
        }

        impl fmt::Display for DetailCode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => f.write_str($english),)*
                    Self::AtMostBytes(limit) => write!(f, "at most {limit} bytes"),
                }
            }
        }
    };
}

codes! {
    // The details of HTTP problem documents.
    KeyMissing = "Send a key: Authorization: Bearer <key>; in a browser, sign in.";
    KeyUnknown = "The key is unknown.";
    TooManyWrongKeys = "Too many wrong keys came from your address. A correct key is still accepted.";
    MayNotRead = "Only the task's owner, an admin, and people who may decide or have decided one of its requests may read it.";
    MayNotDecide = "You may not decide this request: see its `approvers`.";
    KeyMayNotDecide = "This key may not decide requests.";
    LinkMayNotDecide = "A link may not decide this request. Sign in to decide it.";
    // This text must reveal nothing about the request, because the link has ended.
    LinkExpired = "This link is over. Sign in, or wait for the next message.";
    DigestMismatch = "The digest is not that of the request as it is now. Look at `request`.";
    AlreadyDecided = "An earlier answer decided this: see `decision`.";
    RequestExpired = "The request's deadline has passed.";
    RequestWithdrawn = "The request was withdrawn.";
    ForeignOrigin = "The request comes from a page of another origin, which is not allowed here.";
    ShownToAnother = "The form is from a page that was shown to another user. Nothing was changed.";
    NoOrigin = "The request has no `Origin`. A link is answered by the form of its page, in a browser.";
    Unavailable = "The service is not available right now. Try again shortly.";
    Internal = "The service has failed. Its log names this request by its id, below the error with the cause.";
    // The expected values of members of a body and of form fields.
    ValueRequired = "a value is required";
    Json = "unambiguous JSON";
    Date = "must have the format date";
    Number = "a number";
    Integer = "a whole number";
    Boolean = "true or false";
    OfferedChoice = "one of the values that are offered";
    UnknownMember = "no such member";
    NoSuchCall = "no call of this request that needs a decision";
    CallAction = "`approve`, `reject`, `edit` or `respond`";
    ArgumentsUnchosen = "the arguments were changed, but `Change the arguments` is not chosen";
    ArgumentsChangedTwice = "changed both in the fields and as JSON: change one of them";
    ResultUnchosen = "a result was given, but `Give the result yourself` is not chosen";
    ReasonUnchosen = "a reason was given, but no decision";
    AnswerRequired = "at least one answer";
    ThenUnchosen = "only together with a rejection";
    ThenWithoutReject = "`then` only beside `reject`";
    RestNotApproved = "only \"approve\" can be used for the rest";
    ResultType = "`text` or `json`";
    Object = "an object";
    ObjectReplacement = "an object: the full replacement";
    Text = "a string";
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coded(code) => fmt::Display::fmt(code, f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl From<DetailCode> for Detail {
    fn from(code: DetailCode) -> Self {
        Self::Coded(code)
    }
}

impl From<String> for Detail {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Detail {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}
