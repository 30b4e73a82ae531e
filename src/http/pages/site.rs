//! The frame of the pages of the inbox, of requests, of tasks and of standing decisions. It has
//! links to the inbox, the decided requests and the tasks, and names the signed-in user.

use ::http::HeaderMap;
use maud::{Markup, html};

use super::language::Language;
use super::layout::{frame_with_tab_title, visible};
use super::sign_in::signed_in_bar;
use super::site_texts::SiteTexts;
use super::translations::Translations;
use crate::http::Http;
use crate::http::server::problem::path_prefix;
use crate::people::Caller;

/// A target of the links that stand at the top of each page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NavPage {
    Inbox,
    Decided,
    Tasks,
}

/// The data for the frame of a page. `prefix` is the path of `public_url`.
#[derive(Clone, Debug)]
pub(crate) struct Site<'a> {
    pub caller: &'a Caller,
    pub prefix: String,
    pub language: Language,
}

impl<'a> Site<'a> {
    #[must_use]
    pub(crate) fn new(http: &Http, caller: &'a Caller, headers: &HeaderMap) -> Self {
        Self {
            caller,
            prefix: path_prefix(&http.settings.public_url),
            language: Language::from_headers(headers),
        }
    }

    #[must_use]
    pub(crate) fn texts(&self) -> &'static SiteTexts {
        SiteTexts::for_language(self.language)
    }

    #[must_use]
    pub(crate) fn words(&self) -> &'static Translations {
        Translations::for_language(self.language)
    }

    /// Renders the frame's links, and the name of the user in a service with accounts. `current` is
    /// the shown page; `None` if the frame has no link to the shown page. `open` is the number of
    /// open requests; empty if the page does not show it.
    #[must_use]
    pub(crate) fn nav_links(&self, current: Option<NavPage>, open: &str) -> Markup {
        let texts = self.texts();
        let links = [
            (NavPage::Inbox, "/inbox", texts.inbox),
            (NavPage::Decided, "/inbox/decided", texts.decided),
            (NavPage::Tasks, "/tasks", texts.tasks),
        ];
        html! {
            nav.site aria-label=(texts.pages) {
                @for (link, path, text) in links {
                    a href=(format!("{}{path}", self.prefix)) aria-current=[(current == Some(link)).then_some("page")] {
                        (text)
                        @if link == NavPage::Inbox { span #open-count { @if !open.is_empty() { " " (open) } } }
                    }
                }
                @if !self.caller.without_accounts { bdi.who { (visible(self.caller.user_id.as_str())) } }
            }
        }
    }

    /// Renders a whole page. `title` appears only in the title of the browser's tab, so `body` must
    /// contain the heading.
    #[must_use]
    pub(crate) fn page(&self, current: NavPage, title: &str, body: &Markup) -> Markup {
        self.page_with_open_count(current, title, "", body)
    }

    /// Like [`Self::page`], with the number of open requests beside the link to the inbox.
    #[must_use]
    pub(crate) fn page_with_open_count(
        &self,
        current: NavPage,
        title: &str,
        open: &str,
        body: &Markup,
    ) -> Markup {
        let body = html! {
            a.skip href="#content" { (self.texts().skip) }
            header { (self.nav_links(Some(current), open)) }
            div #content tabindex="-1" { (body) }
            footer { (signed_in_bar(self.caller, &self.prefix, self.language)) }
        };
        frame_with_tab_title(self.language, &format!("{title} – Holdpoint"), &body)
    }
}
