//! stub
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revision {
    A,
}
impl Revision {
    pub(crate) fn named(_: &str) -> Option<Self> {
        None
    }
    pub(crate) fn as_str(self) -> &'static str {
        "x"
    }
}
