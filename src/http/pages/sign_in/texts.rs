//! The texts of the sign-in pages, in all languages.

use crate::http::pages::language::{Language, texts};

texts! {
    SignInTexts;
    title: "Sign in", "登录";
    key: "Key", "密钥";
    hint: "The key that the operator of this service gave you. You stay signed in for 12 hours in this browser.", "请输入本服务的管理员提供给您的密钥。在此浏览器中，登录状态保持 12 小时。";
    submit: "Sign in", "登录";
    unknown_key: "This key is unknown. Check it and try again.", "此密钥无效。请检查后重试。";
    signed_in: "Signed in as", "当前用户：";
    is_signed_in: "You are signed in", "您已登录";
    continue_to_page: "Continue to the page you asked for", "前往您要访问的页面";
    sign_out: "Sign out", "退出登录";
    sign_in_as_other: "Sign in as another user", "以其他用户身份登录";
    not_needed: "No sign-in is needed", "无需登录";
    no_accounts: "This service has no accounts: everyone who reaches it is the user local. Close this page and continue.", "本服务未设置账户：所有访问者都是用户 local。请关闭此页面并继续。";
}
