//! The pages that a person sees in a browser, in English and Chinese.

pub mod follow;
pub mod language;
pub mod layout;
pub mod request;
pub mod sign_in;
pub mod translations;
