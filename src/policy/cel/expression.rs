//! The syntax tree of a rule's condition (`when`).

use regex::Regex;

/// An expression, at most `MAX_DEPTH` deep, so that recursion over the tree never overflows the
/// stack.
#[derive(Debug)]
pub(in crate::policy) enum ExprNode {
    Literal(Literal),
    Variable(Variable),
    Local(String),
    List(Vec<ExprNode>),
    Entries(Vec<(ExprNode, ExprNode)>),
    Select(Box<ExprNode>, String),
    Has(Box<ExprNode>, String),
    Index(Box<ExprNode>, Box<ExprNode>),
    Not(Box<ExprNode>),
    Negate(Box<ExprNode>),
    All(Vec<ExprNode>),
    Any(Vec<ExprNode>),
    If(Box<ExprNode>, Box<ExprNode>, Box<ExprNode>),
    Compare(Comparison, Box<ExprNode>, Box<ExprNode>),
    Calculate(Arithmetic, Box<ExprNode>, Box<ExprNode>),
    Matches(Box<ExprNode>, Pattern),
    Call(Function, Vec<ExprNode>),
    Loop(Box<Loop>),
}

#[derive(Debug)]
pub(in crate::policy) struct Pattern {
    /// The pattern as the rule states it.
    pub(in crate::policy) plain: Regex,
    /// The case-insensitive pattern, which is used if the service ignores case in user ids
    /// (`UserIds::Folded`). Set only if the rule applies the pattern to `user.id`.
    pub(in crate::policy) folded: Option<Regex>,
}

#[derive(Debug)]
pub(in crate::policy) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
}

/// The variables that a rule may read. A rule names a variable by its path, such as `tool.name` or
/// `user.groups`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) enum Variable {
    Args,
    ToolName,
    ToolEffect,
    AgentName,
    AgentPath,
    UserId,
    UserTenant,
    UserGroups,
    TaskId,
    TaskMetadata,
    Session,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) enum Function {
    Size,
    Contains,
    StartsWith,
    EndsWith,
    LowerAscii,
    UpperAscii,
    Trim,
    Int,
    Double,
    Text,
}

/// A CEL macro over a list: `all`, `exists`, `exists_one`, `map` or `filter`.
#[derive(Debug)]
pub(in crate::policy) struct Loop {
    pub(in crate::policy) over: ExprNode,
    pub(in crate::policy) filter: Option<ExprNode>,
    pub(in crate::policy) result: LoopResult,
}

#[derive(Debug)]
pub(in crate::policy) enum LoopResult {
    All(ExprNode),
    Exists(ExprNode),
    ExistsOne(ExprNode),
    List(ExprNode),
}
