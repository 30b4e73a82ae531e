//! The pages that a person sees in a browser, in English and Chinese.

pub(crate) mod follow;
pub(crate) mod language;
pub(crate) mod layout;
pub(crate) mod request;
pub(crate) mod sign_in;
pub(crate) mod translations;
