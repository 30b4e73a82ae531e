//! Parses a rule's condition (`when`) into the syntax tree of `expression.rs`. Only this file uses
//! the parser of the `cel` crate. The policy has its own evaluator (`eval.rs`), because the
//! evaluator of the crate absorbs errors (`err || true` is true) and cannot be interrupted.
//!
//! Invariant: no text of a condition overflows the stack. The parser is recursive, and so is the
//! drop of the crate's tree. Therefore the length of a text is limited. The text is parsed,
//! and the crate's tree is dropped, on a thread with a large stack. The resulting tree is limited
//! in depth and in the number of its nodes, and has no nested loops.

mod expression;

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr,
    SelectExpr, operators,
};
use cel::parser::{ParseErrors, PrattParser};
use regex::RegexBuilder;

pub(super) use self::expression::{
    Arithmetic, Comparison, ExprNode, Function, Literal, Loop, LoopResult, Pattern, Variable,
};

pub(super) const MAX_SOURCE_BYTES: usize = 1024;
const MAX_DEPTH: usize = 32;
const MAX_NODES: usize = 400;
const MAX_PATTERN_BYTES: usize = 64 * 1024;
const STACK_BYTES: usize = 64 * 1024 * 1024;

/// The reason why a `when` is refused. The message may quote a name, but no string literal, because
/// a literal may come from an environment variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExpressionError {
    #[error("the expression is longer than {MAX_SOURCE_BYTES} bytes")]
    TooLong,
    #[error("the expression is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("the expression has more than {MAX_NODES} parts")]
    TooLarge,
    #[error("the expression has a loop inside a loop")]
    NestedLoop,
    #[error("this is not a CEL expression (line {line}, column {column})")]
    Syntax { line: isize, column: isize },
    #[error("this expression could not be read")]
    Unreadable,
    #[error("there is no variable `{0}` here: only args, tool, agent, user, task and session")]
    Variable(String),
    #[error("`{0}` cannot be read whole, only its members")]
    Whole(String),
    #[error("there is no `{0}`")]
    Member(String),
    #[error("a loop's variable cannot be called `{0}`")]
    Shadow(String),
    #[error("there is no function `{0}` with these arguments here")]
    Function(String),
    #[error("{0} cannot be used here")]
    Unsupported(&'static str),
    #[error(
        "the pattern of `matches` must be a literal and a valid regular expression of moderate size"
    )]
    Pattern,
}

/// Parses an expression. Returns its tree and its flaws. The tree is `None` if a flaw keeps the
/// expression from being read to its end. A tree with flaws must not be evaluated.
pub(super) fn parse(source: &str) -> (Option<ExprNode>, Vec<ExpressionError>) {
    if source.len() > MAX_SOURCE_BYTES {
        return (None, vec![ExpressionError::TooLong]);
    }
    std::thread::scope(|scope| {
        let handle = std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || parse_here(source));
        handle
            .ok()
            .and_then(|handle| handle.join().ok())
            .unwrap_or_else(|| (None, vec![ExpressionError::Unreadable]))
    })
}

fn parse_here(source: &str) -> (Option<ExprNode>, Vec<ExpressionError>) {
    let parser = PrattParser::new()
        .enable_variadic_operator_asts(true)
        .enable_ident_escape_syntax(true);
    let tree = match parser.parse(source) {
        Ok(tree) => tree,
        Err(errors) => return (None, vec![syntax_error(&errors)]),
    };
    let mut reader = TreeReader::default();
    let node = reader.read(&tree, 1);
    let mut flaws = reader.flaws;
    let node = node.map_err(|flaw| flaws.push(flaw)).ok();
    (node, flaws)
}

fn syntax_error(errors: &ParseErrors) -> ExpressionError {
    if errors
        .errors
        .iter()
        .any(|error| error.msg.contains("recursion limit"))
    {
        return ExpressionError::TooDeep;
    }
    let (line, column) = errors.errors.first().map_or((1, 1), |error| error.pos);
    ExpressionError::Syntax {
        line: line.max(1),
        column: column.max(1),
    }
}

const ROOTS: [&str; 6] = ["args", "tool", "agent", "user", "task", "session"];

fn variable_at(root: &str, member: &str) -> Option<Variable> {
    Some(match (root, member) {
        ("tool", "name") => Variable::ToolName,
        ("tool", "effect") => Variable::ToolEffect,
        ("agent", "name") => Variable::AgentName,
        ("agent", "path") => Variable::AgentPath,
        ("user", "id") => Variable::UserId,
        ("user", "tenant") => Variable::UserTenant,
        ("user", "groups") => Variable::UserGroups,
        ("task", "id") => Variable::TaskId,
        ("task", "metadata") => Variable::TaskMetadata,
        _ => return None,
    })
}

#[derive(Default)]
struct TreeReader {
    nodes: usize,
    local: Option<String>,
    /// The flaws found so far, each listed once. Only flaws that do not stop the reader are listed:
    /// an unknown name, and a variable such as `user` that is read as a whole, although a rule may
    /// read only its members.
    flaws: Vec<ExpressionError>,
}

impl TreeReader {
    fn read(&mut self, expression: &IdedExpr, depth: usize) -> Result<ExprNode, ExpressionError> {
        self.nodes += 1;
        if depth > MAX_DEPTH {
            return Err(ExpressionError::TooDeep);
        }
        if self.nodes > MAX_NODES {
            return Err(ExpressionError::TooLarge);
        }
        match &expression.expr {
            Expr::Literal(value) => literal(value).map(ExprNode::Literal),
            Expr::Ident(name) => Ok(self.variable(name)),
            Expr::List(list) => self.list(list, depth),
            Expr::Map(map) => self.entries(map, depth),
            Expr::Select(select) => self.select(select, depth),
            Expr::Call(call) => self.call(call, depth),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, depth),
            Expr::Struct(_) => Err(ExpressionError::Unsupported("a message literal")),
            Expr::Unspecified => Err(ExpressionError::Unreadable),
        }
    }

    fn boxed(
        &mut self,
        expression: &IdedExpr,
        depth: usize,
    ) -> Result<Box<ExprNode>, ExpressionError> {
        self.read(expression, depth + 1).map(Box::new)
    }

    fn each(
        &mut self,
        expressions: &[IdedExpr],
        depth: usize,
    ) -> Result<Vec<ExprNode>, ExpressionError> {
        expressions
            .iter()
            .map(|expression| self.read(expression, depth + 1))
            .collect()
    }

    /// Records a flaw. Returns an empty map in place of the flawed part, so that the rest of the
    /// expression is read and checked, too. The type check accepts this map in place of a value of
    /// any type.
    fn flawed(&mut self, flaw: ExpressionError) -> ExprNode {
        if !self.flaws.contains(&flaw) {
            self.flaws.push(flaw);
        }
        ExprNode::Entries(Vec::new())
    }

    fn variable(&mut self, name: &str) -> ExprNode {
        if self.local.as_deref() == Some(name) {
            return ExprNode::Local(name.to_owned());
        }
        match name {
            "args" => ExprNode::Variable(Variable::Args),
            "session" => ExprNode::Variable(Variable::Session),
            _ if ROOTS.contains(&name) => self.flawed(ExpressionError::Whole(name.to_owned())),
            _ => self.flawed(ExpressionError::Variable(name.to_owned())),
        }
    }

    fn list(&mut self, list: &ListExpr, depth: usize) -> Result<ExprNode, ExpressionError> {
        if !list.optional_indices.is_empty() {
            return Err(ExpressionError::Unsupported("an optional element"));
        }
        self.each(&list.elements, depth).map(ExprNode::List)
    }

    fn entries(&mut self, map: &MapExpr, depth: usize) -> Result<ExprNode, ExpressionError> {
        let mut entries = Vec::new();
        for entry in &map.entries {
            match &entry.expr {
                EntryExpr::MapEntry(entry) if !entry.optional => {
                    entries.push((
                        self.read(&entry.key, depth + 1)?,
                        self.read(&entry.value, depth + 1)?,
                    ));
                }
                EntryExpr::MapEntry(_) | EntryExpr::StructField(_) => {
                    return Err(ExpressionError::Unsupported("an optional entry"));
                }
            }
        }
        Ok(ExprNode::Entries(entries))
    }

    fn select(&mut self, select: &SelectExpr, depth: usize) -> Result<ExprNode, ExpressionError> {
        if let Expr::Ident(root) = &select.operand.expr
            && matches!(root.as_str(), "tool" | "agent" | "user" | "task")
        {
            let Some(variable) = variable_at(root, &select.field) else {
                let member = format!("{root}.{}", select.field);
                return Ok(self.flawed(ExpressionError::Member(member)));
            };
            return Ok(if select.test {
                ExprNode::Literal(Literal::Bool(true))
            } else {
                ExprNode::Variable(variable)
            });
        }
        let of = self.boxed(&select.operand, depth)?;
        let field = select.field.clone();
        Ok(if select.test {
            ExprNode::Has(of, field)
        } else {
            ExprNode::Select(of, field)
        })
    }

    fn call(&mut self, call: &CallExpr, depth: usize) -> Result<ExprNode, ExpressionError> {
        if call.target.is_some() {
            return self.function(call, depth);
        }
        Ok(match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::LOGICAL_AND, all) => ExprNode::All(self.each(all, depth)?),
            (operators::LOGICAL_OR, any) => ExprNode::Any(self.each(any, depth)?),
            (operators::LOGICAL_NOT, [one]) => ExprNode::Not(self.boxed(one, depth)?),
            (operators::NEGATE, [one]) => ExprNode::Negate(self.boxed(one, depth)?),
            (operators::CONDITIONAL, [test, yes, no]) => ExprNode::If(
                self.boxed(test, depth)?,
                self.boxed(yes, depth)?,
                self.boxed(no, depth)?,
            ),
            (operators::INDEX, [of, at]) => self.index(of, at, depth)?,
            (operators::IN, [item, of]) => self.membership(item, of, depth)?,
            (name, [left, right]) if let Some(operator) = comparison(name) => ExprNode::Compare(
                operator,
                self.boxed(left, depth)?,
                self.boxed(right, depth)?,
            ),
            (name, [left, right]) if let Some(operator) = arithmetic(name) => ExprNode::Calculate(
                operator,
                self.boxed(left, depth)?,
                self.boxed(right, depth)?,
            ),
            _ => self.function(call, depth)?,
        })
    }

    fn index(
        &mut self,
        of: &IdedExpr,
        at: &IdedExpr,
        depth: usize,
    ) -> Result<ExprNode, ExpressionError> {
        let of = self.boxed(of, depth)?;
        let at = self.read(at, depth + 1)?;
        Ok(if let ExprNode::Literal(Literal::Text(name)) = at {
            ExprNode::Select(of, name)
        } else {
            ExprNode::Index(of, Box::new(at))
        })
    }

    fn membership(
        &mut self,
        item: &IdedExpr,
        of: &IdedExpr,
        depth: usize,
    ) -> Result<ExprNode, ExpressionError> {
        let (item, of) = (self.read(item, depth + 1)?, self.boxed(of, depth)?);
        Ok(match (item, of.as_ref()) {
            (ExprNode::Literal(Literal::Text(name)), ExprNode::Variable(Variable::Args)) => {
                ExprNode::Has(of, name)
            }
            (item, _) => ExprNode::Compare(Comparison::In, Box::new(item), of),
        })
    }

    fn function(&mut self, call: &CallExpr, depth: usize) -> Result<ExprNode, ExpressionError> {
        let mut arguments = Vec::new();
        if let Some(target) = &call.target {
            arguments.push(self.read(target, depth + 1)?);
        }
        arguments.extend(self.each(&call.args, depth)?);
        let method = call.target.is_some();
        let function = match (call.func_name.as_str(), arguments.len(), method) {
            ("matches", 2, _) => return matches(arguments),
            ("dyn", 1, false) => return arguments.pop().ok_or(ExpressionError::Unreadable),
            ("size", 1, _) => Function::Size,
            ("contains", 2, true) => Function::Contains,
            ("startsWith", 2, true) => Function::StartsWith,
            ("endsWith", 2, true) => Function::EndsWith,
            ("lowerAscii", 1, true) => Function::LowerAscii,
            ("upperAscii", 1, true) => Function::UpperAscii,
            ("trim", 1, true) => Function::Trim,
            ("int", 1, false) => Function::Int,
            ("double", 1, false) => Function::Double,
            ("string", 1, false) => Function::Text,
            (name, _, _) => {
                return Ok(self.flawed(ExpressionError::Function(name.to_owned())));
            }
        };
        Ok(ExprNode::Call(function, arguments))
    }

    /// Reads the loop into which the parser has expanded a macro such as `all`. The form of the
    /// loop step shows which macro the rule uses.
    fn comprehension(
        &mut self,
        expanded: &ComprehensionExpr,
        depth: usize,
    ) -> Result<ExprNode, ExpressionError> {
        if self.local.is_some() {
            return Err(ExpressionError::NestedLoop);
        }
        if ROOTS.contains(&expanded.iter_var.as_str()) {
            return Err(ExpressionError::Shadow(expanded.iter_var.clone()));
        }
        let over = self.read(&expanded.iter_range, depth + 1)?;
        self.local = Some(expanded.iter_var.clone());
        let body = self.body(&expanded.loop_step, depth + 1);
        self.local = None;
        let (filter, result) = body?;
        Ok(ExprNode::Loop(Box::new(Loop {
            over,
            filter,
            result,
        })))
    }

    fn body(
        &mut self,
        step: &IdedExpr,
        depth: usize,
    ) -> Result<(Option<ExprNode>, LoopResult), ExpressionError> {
        let Expr::Call(step) = &step.expr else {
            return Err(ExpressionError::Unreadable);
        };
        match (step.func_name.as_str(), step.args.as_slice()) {
            (operators::LOGICAL_AND, [_, test]) => {
                Ok((None, LoopResult::All(self.read(test, depth)?)))
            }
            (operators::LOGICAL_OR, [_, test]) => {
                Ok((None, LoopResult::Exists(self.read(test, depth)?)))
            }
            (operators::CONDITIONAL, [test, then, _]) => {
                let test = self.read(test, depth)?;
                match appended(then)? {
                    Some(item) => Ok((Some(test), LoopResult::List(self.read(item, depth)?))),
                    None => Ok((None, LoopResult::ExistsOne(test))),
                }
            }
            (operators::ADD, [_, item]) => {
                let item = single(item).ok_or(ExpressionError::Unreadable)?;
                Ok((None, LoopResult::List(self.read(item, depth)?)))
            }
            _ => Err(ExpressionError::Unreadable),
        }
    }
}

/// Returns the item that a loop step such as `@result + [item]` appends to the list; `None` if the
/// step is `@result + 1`, which counts. `@result` is the parser's name for the accumulator of the
/// loop.
fn appended(step: &IdedExpr) -> Result<Option<&IdedExpr>, ExpressionError> {
    let Expr::Call(call) = &step.expr else {
        return Err(ExpressionError::Unreadable);
    };
    if call.func_name == operators::ADD {
        Ok(call.args.last().and_then(single))
    } else {
        Err(ExpressionError::Unreadable)
    }
}

fn single(list: &IdedExpr) -> Option<&IdedExpr> {
    if let Expr::List(list) = &list.expr {
        list.elements.first()
    } else {
        None
    }
}

fn arithmetic(name: &str) -> Option<Arithmetic> {
    Some(match name {
        operators::ADD => Arithmetic::Add,
        operators::SUBSTRACT => Arithmetic::Subtract,
        operators::MULTIPLY => Arithmetic::Multiply,
        operators::DIVIDE => Arithmetic::Divide,
        operators::MODULO => Arithmetic::Remainder,
        _ => return None,
    })
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        operators::EQUALS => Comparison::Equal,
        operators::NOT_EQUALS => Comparison::NotEqual,
        operators::LESS => Comparison::Less,
        operators::LESS_EQUALS => Comparison::LessOrEqual,
        operators::GREATER => Comparison::Greater,
        operators::GREATER_EQUALS => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

fn matches(arguments: Vec<ExprNode>) -> Result<ExprNode, ExpressionError> {
    let mut arguments = arguments.into_iter();
    let (Some(text), Some(ExprNode::Literal(Literal::Text(pattern)))) =
        (arguments.next(), arguments.next())
    else {
        return Err(ExpressionError::Pattern);
    };
    let build = |folded| {
        let mut builder = RegexBuilder::new(&pattern);
        let builder = builder
            .size_limit(MAX_PATTERN_BYTES)
            .dfa_size_limit(1 << 20)
            .case_insensitive(folded);
        builder.build().map_err(|_| ExpressionError::Pattern)
    };
    let folded = matches!(text, ExprNode::Variable(Variable::UserId))
        .then(|| build(true))
        .transpose()?;
    Ok(ExprNode::Matches(
        Box::new(text),
        Pattern {
            plain: build(false)?,
            folded,
        },
    ))
}

fn literal(value: &LiteralValue) -> Result<Literal, ExpressionError> {
    match value {
        LiteralValue::Null => Ok(Literal::Null),
        LiteralValue::Boolean(value) => Ok(Literal::Bool(*value.inner())),
        LiteralValue::Int(value) => Ok(Literal::Int(*value.inner())),
        LiteralValue::Double(value) if value.inner().is_finite() => {
            Ok(Literal::Double(*value.inner()))
        }
        LiteralValue::Double(_) => Err(ExpressionError::Unsupported("a number that is not finite")),
        LiteralValue::String(value) => Ok(Literal::Text(value.inner().to_owned())),
        LiteralValue::UInt(_) => Err(ExpressionError::Unsupported("an unsigned number")),
        LiteralValue::Bytes(_) => Err(ExpressionError::Unsupported("a bytes literal")),
    }
}
