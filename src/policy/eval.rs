//! Evaluates an expression for one call. Invariants: if an evaluated part faults, the whole
//! expression faults, even inside `||` and `exists`. Each evaluation has a budget of steps, and
//! faults without steps left, so the time is limited. No evaluation can panic or recurse deeply.

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;

use super::JudgementInput;
use super::cel::{
    Arithmetic, Comparison, ExprNode, Function, Literal, Loop, LoopResult, Pattern, Variable,
};
use super::shape::Shape;
use super::value::ExprValue;
use crate::task::user::UserIds;

/// The reason why an expression has no value. The message may quote a name from the rule's
/// expression, but never quotes the contents of the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("`{0}` is missing")]
    Missing(String),
    #[error("it reads an argument that the tool does not declare with one type")]
    Undeclared,
    #[error("values of unlike types meet")]
    Type,
    #[error("a number leaves its range or is divided by zero")]
    Range,
    #[error("an index is outside its list or map")]
    Index,
    #[error("the arguments are too large for it")]
    Exhausted,
    #[error("it is neither true nor false")]
    NotBoolean,
    #[error("the arguments do not have the types that the tool declares")]
    Misfit,
    #[error("its expression was refused")]
    Refused,
}

/// The number of steps that are left for one judgement.
#[derive(Debug)]
pub(super) struct StepBudget(Cell<u32>);

impl StepBudget {
    /// Returns a budget of `steps` steps. A step is one evaluated part of an expression, one copied
    /// or compared item, 16 bytes of a compared or copied text, or one byte of a text that
    /// `matches` searches.
    pub(super) fn new(steps: u32) -> Self {
        Self(Cell::new(steps))
    }

    pub(super) fn spend(&self, steps: usize) -> Result<(), Fault> {
        let left = u32::try_from(steps)
            .ok()
            .and_then(|steps| self.0.get().checked_sub(steps));
        self.0.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or(Fault::Exhausted)
    }

    pub(super) fn spend_text(&self, bytes: usize) -> Result<(), Fault> {
        self.spend(bytes / 16)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) input: &'a JudgementInput<'a>,
    /// The names of the agents from the root's agent to the agent for which the call is judged.
    pub(super) path: &'a [String],
    pub(super) shape: &'a Shape,
    pub(super) budget: &'a StepBudget,
}

static FREE_SHAPE: Shape = Shape::Free;

/// Evaluates a condition. A value that is not boolean is a fault.
pub(super) fn evaluate_condition<'a>(node: &'a ExprNode, scope: &Scope<'a>) -> Result<bool, Fault> {
    let value = Evaluator {
        scope: *scope,
        local: None,
    }
    .value(node)?;
    if let ExprValue::Bool(truth) = value {
        Ok(truth)
    } else {
        Err(Fault::NotBoolean)
    }
}

struct Evaluator<'a> {
    scope: Scope<'a>,
    /// The value of the loop variable; `None` before the first loop. Loops do not nest, so there is
    /// never a second loop variable.
    local: Option<ExprValue<'a>>,
}

impl<'a> Evaluator<'a> {
    fn value(&mut self, node: &'a ExprNode) -> Result<ExprValue<'a>, Fault> {
        self.scope.budget.spend(1)?;
        match node {
            ExprNode::Literal(literal) => Ok(constant(literal)),
            ExprNode::Variable(variable) => self.variable(*variable),
            ExprNode::Local(_) => self.local.clone().ok_or(Fault::Refused),
            ExprNode::List(items) => {
                let items: Result<Vec<_>, _> = items.iter().map(|item| self.value(item)).collect();
                Ok(ExprValue::List(Rc::new(items?)))
            }
            ExprNode::Entries(entries) => {
                let entries: Result<Vec<_>, _> = entries
                    .iter()
                    .map(|(key, value)| Ok((self.value(key)?, self.value(value)?)))
                    .collect();
                Ok(ExprValue::Entries(Rc::new(entries?)))
            }
            ExprNode::Select(of, name) => self
                .value(of)?
                .member(name)?
                .ok_or_else(|| Fault::Missing(name.clone())),
            ExprNode::Has(of, name) => Ok(ExprValue::Bool(self.value(of)?.member(name)?.is_some())),
            ExprNode::Index(of, at) => self.index(of, at),
            ExprNode::Not(of) => Ok(ExprValue::Bool(!self.truth(of)?)),
            ExprNode::Negate(of) => negate(&self.value(of)?),
            ExprNode::All(parts) => self.eval_logical(parts, false),
            ExprNode::Any(parts) => self.eval_logical(parts, true),
            ExprNode::If(condition, yes, no) => {
                if self.truth(condition)? {
                    self.value(yes)
                } else {
                    self.value(no)
                }
            }
            ExprNode::Compare(operator, left, right) => {
                self.eval_comparison(*operator, left, right)
            }
            ExprNode::Calculate(operator, left, right) => {
                let (left, right) = (self.value(left)?, self.value(right)?);
                calculate(*operator, &left, &right, self.scope.budget)
            }
            ExprNode::Matches(text, pattern) => self.eval_matches(text, pattern),
            ExprNode::Call(function, arguments) => self.eval_call(*function, arguments),
            ExprNode::Loop(each) => self.eval_loop(each),
        }
    }

    fn eval_comparison(
        &mut self,
        operator: Comparison,
        left: &'a ExprNode,
        right: &'a ExprNode,
    ) -> Result<ExprValue<'a>, Fault> {
        let (left, right) = self.pair(left, right)?;
        compare(operator, &left, &right, self.scope.budget).map(ExprValue::Bool)
    }

    fn eval_matches(
        &mut self,
        text: &'a ExprNode,
        pattern: &'a Pattern,
    ) -> Result<ExprValue<'a>, Fault> {
        let folds_ids = is_user_id(text) && self.scope.input.user.ids() == UserIds::Folded;
        let pattern = pattern
            .folded
            .as_ref()
            .filter(|_| folds_ids)
            .unwrap_or(&pattern.plain);
        let ExprValue::Text(text) = self.value(text)? else {
            return Err(Fault::Type);
        };
        self.scope.budget.spend(text.len())?;
        Ok(ExprValue::Bool(pattern.is_match(&text)))
    }

    fn eval_call(
        &mut self,
        function: Function,
        arguments: &'a [ExprNode],
    ) -> Result<ExprValue<'a>, Fault> {
        let searches = matches!(
            function,
            Function::Contains | Function::StartsWith | Function::EndsWith
        );
        let folds_ids = searches && arguments.iter().any(is_user_id);
        let value = |argument| {
            self.value(argument).and_then(|it| {
                if folds_ids {
                    self.with_user_keys(it)
                } else {
                    Ok(it)
                }
            })
        };
        let arguments: Result<Vec<_>, _> = arguments.iter().map(value).collect();
        call(function, &arguments?, self.scope.budget)
    }

    /// Evaluates both operands of a comparison or of an index expression. If an operand is
    /// `user.id`, replaces the ids in both values by their `UserKey`s. Two spellings of one id then
    /// compare as equal.
    fn pair(
        &mut self,
        one: &'a ExprNode,
        other: &'a ExprNode,
    ) -> Result<(ExprValue<'a>, ExprValue<'a>), Fault> {
        let folds_ids = is_user_id(one) || is_user_id(other);
        let (one, other) = (self.value(one)?, self.value(other)?);
        if folds_ids {
            Ok((self.with_user_keys(one)?, self.with_user_keys(other)?))
        } else {
            Ok((one, other))
        }
    }

    fn with_user_keys(&self, value: ExprValue<'a>) -> Result<ExprValue<'a>, Fault> {
        value.with_user_keys(self.scope.input.user.ids(), self.scope.budget)
    }

    fn truth(&mut self, node: &'a ExprNode) -> Result<bool, Fault> {
        if let ExprValue::Bool(truth) = self.value(node)? {
            Ok(truth)
        } else {
            Err(Fault::Type)
        }
    }

    /// Evaluates `&&` (`decisive` is false) or `||` (`decisive` is true). Evaluates the parts from
    /// left to right, up to the first part that equals `decisive` or faults.
    fn eval_logical(
        &mut self,
        parts: &'a [ExprNode],
        decisive: bool,
    ) -> Result<ExprValue<'a>, Fault> {
        for part in parts {
            if self.truth(part)? == decisive {
                return Ok(ExprValue::Bool(decisive));
            }
        }
        Ok(ExprValue::Bool(!decisive))
    }

    fn variable(&self, variable: Variable) -> Result<ExprValue<'a>, Fault> {
        let Scope {
            input, path, shape, ..
        } = self.scope;
        Ok(match variable {
            Variable::Args => ExprValue::from_json(input.args, shape)?,
            Variable::ToolName => text(&input.tool.name),
            Variable::ToolEffect => text(input.tool.effect.as_str()),
            Variable::AgentName => text(path.last().ok_or(Fault::Refused)?),
            Variable::AgentPath => ExprValue::Names(path),
            Variable::UserId => text(input.user.as_str()),
            Variable::UserTenant => text(input.tenant),
            Variable::UserGroups => ExprValue::Names(input.groups),
            Variable::TaskId => text(input.task_id),
            Variable::TaskMetadata => ExprValue::from_json(input.metadata, &FREE_SHAPE)?,
            Variable::Session => text(input.session),
        })
    }

    fn index(&mut self, of: &'a ExprNode, at: &'a ExprNode) -> Result<ExprValue<'a>, Fault> {
        let (of, at) = self.pair(of, at)?;
        match (&of, &at) {
            (ExprValue::Object(_, Shape::Free) | ExprValue::Entries(_), ExprValue::Text(name)) => {
                of.member(name)?.ok_or(Fault::Index)
            }
            (ExprValue::Entries(entries), key) => {
                for (other, value) in entries.iter() {
                    if other.equals(key, self.scope.budget)? {
                        return Ok(value.clone());
                    }
                }
                Err(Fault::Index)
            }
            (list, ExprValue::Int(at)) => {
                list.list_item(usize::try_from(*at).map_err(|_| Fault::Index)?)
            }
            _ => Err(Fault::Type),
        }
    }

    fn eval_loop(&mut self, each: &'a Loop) -> Result<ExprValue<'a>, Fault> {
        let over = self.value(&each.over)?;
        let mut list = Vec::new();
        let mut found = 0_usize;
        for at in 0..over.list_len()? {
            self.local = Some(over.list_item(at)?);
            if let Some(filter) = &each.filter
                && !self.truth(filter)?
            {
                continue;
            }
            match &each.result {
                LoopResult::All(test) => {
                    if !self.truth(test)? {
                        return Ok(ExprValue::Bool(false));
                    }
                }
                LoopResult::Exists(test) => {
                    if self.truth(test)? {
                        return Ok(ExprValue::Bool(true));
                    }
                }
                LoopResult::ExistsOne(test) => found += usize::from(self.truth(test)?),
                LoopResult::List(item) => list.push(self.value(item)?),
            }
        }
        Ok(match each.result {
            LoopResult::All(_) => ExprValue::Bool(true),
            LoopResult::Exists(_) => ExprValue::Bool(false),
            LoopResult::ExistsOne(_) => ExprValue::Bool(found == 1),
            LoopResult::List(_) => ExprValue::List(Rc::new(list)),
        })
    }
}

fn is_user_id(node: &ExprNode) -> bool {
    matches!(node, ExprNode::Variable(Variable::UserId))
}

fn text(value: &str) -> ExprValue<'_> {
    ExprValue::Text(Cow::Borrowed(value))
}

fn constant(literal: &Literal) -> ExprValue<'_> {
    match literal {
        Literal::Null => ExprValue::Null,
        Literal::Bool(value) => ExprValue::Bool(*value),
        Literal::Int(value) => ExprValue::Int(*value),
        Literal::Double(value) => ExprValue::Double(*value),
        Literal::Text(value) => text(value),
    }
}

fn contains(of: &ExprValue<'_>, item: &ExprValue<'_>, budget: &StepBudget) -> Result<bool, Fault> {
    if let (ExprValue::Object(_, Shape::Free) | ExprValue::Entries(_), ExprValue::Text(name)) =
        (of, item)
    {
        return Ok(of.member(name)?.is_some());
    }
    let mut found = false;
    for at in 0..of.list_len()? {
        found |= of.list_item(at)?.equals(item, budget)?;
    }
    Ok(found)
}

fn compare(
    operator: Comparison,
    left: &ExprValue<'_>,
    right: &ExprValue<'_>,
    budget: &StepBudget,
) -> Result<bool, Fault> {
    Ok(match operator {
        Comparison::Equal => left.equals(right, budget)?,
        Comparison::NotEqual => !left.equals(right, budget)?,
        Comparison::Less => left.order(right, budget)?.is_lt(),
        Comparison::LessOrEqual => left.order(right, budget)?.is_le(),
        Comparison::Greater => left.order(right, budget)?.is_gt(),
        Comparison::GreaterOrEqual => left.order(right, budget)?.is_ge(),
        Comparison::In => contains(right, left, budget)?,
    })
}

fn negate<'a>(of: &ExprValue<'a>) -> Result<ExprValue<'a>, Fault> {
    if let ExprValue::Double(value) = of {
        return Ok(ExprValue::Double(-value));
    }
    let ExprValue::Int(value) = of else {
        return Err(Fault::Type);
    };
    value.checked_neg().map(ExprValue::Int).ok_or(Fault::Range)
}

fn calculate<'a>(
    operator: Arithmetic,
    left: &ExprValue<'a>,
    right: &ExprValue<'a>,
    budget: &StepBudget,
) -> Result<ExprValue<'a>, Fault> {
    match (left, right) {
        (ExprValue::Int(left), ExprValue::Int(right)) => match operator {
            Arithmetic::Add => left.checked_add(*right),
            Arithmetic::Subtract => left.checked_sub(*right),
            Arithmetic::Multiply => left.checked_mul(*right),
            Arithmetic::Divide => left.checked_div(*right),
            Arithmetic::Remainder => left.checked_rem(*right),
        }
        .map(ExprValue::Int)
        .ok_or(Fault::Range),
        (ExprValue::Double(left), ExprValue::Double(right)) => {
            let result = match operator {
                Arithmetic::Add => left + right,
                Arithmetic::Subtract => left - right,
                Arithmetic::Multiply => left * right,
                Arithmetic::Divide => left / right,
                Arithmetic::Remainder => return Err(Fault::Type),
            };
            if result.is_finite() {
                Ok(ExprValue::Double(result))
            } else {
                Err(Fault::Range)
            }
        }
        (ExprValue::Text(left), ExprValue::Text(right)) if operator == Arithmetic::Add => {
            budget.spend_text(left.len() + right.len())?;
            Ok(ExprValue::Text(Cow::Owned(format!("{left}{right}"))))
        }
        (left, right) if operator == Arithmetic::Add => {
            let (first, second) = (left.list_len()?, right.list_len()?);
            budget.spend(first + second)?;
            let items = (0..first)
                .map(|at| left.list_item(at))
                .chain((0..second).map(|at| right.list_item(at)));
            Ok(ExprValue::List(Rc::new(items.collect::<Result<_, _>>()?)))
        }
        _ => Err(Fault::Type),
    }
}

fn call<'a>(
    function: Function,
    arguments: &[ExprValue<'a>],
    budget: &StepBudget,
) -> Result<ExprValue<'a>, Fault> {
    for argument in arguments {
        if let ExprValue::Text(text) = argument {
            budget.spend_text(text.len())?;
        }
    }
    let owned = |text: String| ExprValue::Text(Cow::Owned(text));
    Ok(match (function, arguments) {
        (Function::Size, [of]) => {
            ExprValue::Int(i64::try_from(size(of)?).map_err(|_| Fault::Range)?)
        }
        (Function::Contains, [ExprValue::Text(of), ExprValue::Text(part)]) => {
            ExprValue::Bool(of.contains(part.as_ref()))
        }
        (Function::StartsWith, [ExprValue::Text(of), ExprValue::Text(part)]) => {
            ExprValue::Bool(of.starts_with(part.as_ref()))
        }
        (Function::EndsWith, [ExprValue::Text(of), ExprValue::Text(part)]) => {
            ExprValue::Bool(of.ends_with(part.as_ref()))
        }
        (Function::LowerAscii, [ExprValue::Text(of)]) => owned(of.to_ascii_lowercase()),
        (Function::UpperAscii, [ExprValue::Text(of)]) => owned(of.to_ascii_uppercase()),
        (Function::Trim, [ExprValue::Text(of)]) => owned(of.trim().to_owned()),
        (Function::Int, [of @ ExprValue::Int(_)])
        | (Function::Double, [of @ ExprValue::Double(_)])
        | (Function::Text, [of @ ExprValue::Text(_)]) => of.clone(),
        (Function::Int, [ExprValue::Double(of)]) => ExprValue::Int(to_int(*of)?),
        (Function::Int, [ExprValue::Text(of)]) => {
            ExprValue::Int(of.parse().map_err(|_| Fault::Type)?)
        }
        (Function::Double, [ExprValue::Int(of)]) => ExprValue::Double(to_double(*of)),
        (Function::Double, [ExprValue::Text(of)]) => {
            let number = of.parse().ok().filter(|number: &f64| number.is_finite());
            ExprValue::Double(number.ok_or(Fault::Type)?)
        }
        (Function::Text, [ExprValue::Int(of)]) => owned(of.to_string()),
        (Function::Text, [ExprValue::Double(of)]) => owned(of.to_string()),
        (Function::Text, [ExprValue::Bool(of)]) => owned(of.to_string()),
        _ => return Err(Fault::Type),
    })
}

fn size(of: &ExprValue<'_>) -> Result<usize, Fault> {
    if let ExprValue::Text(text) = of {
        Ok(text.chars().count())
    } else if let ExprValue::Object(object, _) = of {
        Ok(object.len())
    } else if let ExprValue::Entries(entries) = of {
        Ok(entries.len())
    } else {
        of.list_len()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "within the range of i64, by the comparison before"
)]
fn to_int(value: f64) -> Result<i64, Fault> {
    if value.abs() < 9_223_372_036_854_775_808.0 {
        Ok(value as i64)
    } else {
        Err(Fault::Range)
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "CEL's double() rounds to the nearest"
)]
fn to_double(value: i64) -> f64 {
    value as f64
}
