//! Type-checks an expression against a tool's arguments. Finds the members of `args` that the
//! expression reads. Reports the members that do not have exactly one type, and the parts of the
//! expression whose types never fit together.
//!
//! Invariant: an expression is refused as a mistake if it reads `args` as a whole, a member by a
//! computed name, or a member that the tool's schema does not declare with exactly one type. If the
//! types of a part never fit together, or the result is never boolean, a warning is enough: an
//! evaluation that reaches such a part or result fails, and a failed evaluation never allows a
//! call.

use std::collections::{BTreeMap, BTreeSet};

use super::cel::{Arithmetic, Comparison, ExprNode, Function, Literal, Loop, LoopResult, Variable};
use super::shape::{Member, Shape};

/// The findings of the type check of one expression against the arguments of one tool.
#[derive(Debug, Default)]
pub(super) struct TypeFindings {
    /// The errors. An expression with an error must not be used.
    pub(super) refused: BTreeSet<String>,
    /// The warnings about parts whose evaluation always fails.
    pub(super) misfits: BTreeSet<String>,
    /// The types of the members that the expression reads or tests with `has`, by path.
    pub(super) members: BTreeMap<String, Shape>,
    /// The paths of members that the expression reads, but that the schema does not require. If a
    /// call does not have such a member, an evaluation that reads it fails.
    pub(super) optional: BTreeSet<String>,
    /// The variables that the expression reads and whose values the API's client chooses:
    /// `task.metadata`, `session` or both.
    pub(super) from_caller: BTreeSet<&'static str>,
}

/// Checks an expression for a tool with arguments of this shape.
pub(super) fn check_types(node: &ExprNode, arguments: &Shape) -> TypeFindings {
    let mut checker = TypeChecker {
        arguments,
        local: Shape::Free,
        found: TypeFindings::default(),
    };
    let result = checker.shape(node);
    if !may_be(&result, &Shape::Bool) {
        checker.misfit(format!(
            "gives a value of type {}, neither true nor false, so it can never allow",
            result.type_name()
        ));
    }
    checker.found
}

struct TypeChecker<'a> {
    arguments: &'a Shape,
    local: Shape,
    found: TypeFindings,
}

impl TypeChecker<'_> {
    fn refuse(&mut self, detail: String) -> Shape {
        self.found.refused.insert(detail);
        Shape::Free
    }

    fn misfit(&mut self, detail: impl Into<String>) {
        self.found.misfits.insert(detail.into());
    }

    fn expect(&mut self, node: &ExprNode, wanted: &Shape) {
        let shape = self.shape(node);
        if !may_be(&shape, wanted) {
            self.misfit(format!(
                "uses a value of type {} as {}",
                shape.type_name(),
                wanted.type_name()
            ));
        }
    }

    fn shape(&mut self, node: &ExprNode) -> Shape {
        match node {
            ExprNode::Literal(literal) => constant(literal),
            ExprNode::Variable(Variable::Args) => {
                self.refuse("reads `args` whole; it may only read members by name".to_owned())
            }
            ExprNode::Variable(variable) => self.variable(*variable),
            ExprNode::Local(_) => self.local.clone(),
            ExprNode::List(items) => {
                let shapes: Vec<Shape> = items.iter().map(|item| self.shape(item)).collect();
                Shape::List(Box::new(common(shapes)))
            }
            ExprNode::Entries(entries) => {
                for (key, value) in entries {
                    self.shape(key);
                    self.shape(value);
                }
                Shape::Free
            }
            ExprNode::Select(of, name) => self.member(of, name, true),
            ExprNode::Has(of, name) => {
                self.member(of, name, false);
                Shape::Bool
            }
            ExprNode::Index(of, at) => self.index(of, at),
            ExprNode::Not(of) => {
                self.expect(of, &Shape::Bool);
                Shape::Bool
            }
            ExprNode::Negate(of) => self.shape(of),
            ExprNode::All(parts) | ExprNode::Any(parts) => {
                for part in parts {
                    self.expect(part, &Shape::Bool);
                }
                Shape::Bool
            }
            ExprNode::If(condition, yes, no) => {
                self.expect(condition, &Shape::Bool);
                let shapes = vec![self.shape(yes), self.shape(no)];
                common(shapes)
            }
            ExprNode::Compare(operator, left, right) => self.compare(*operator, left, right),
            ExprNode::Calculate(operator, left, right) => self.calculate(*operator, left, right),
            ExprNode::Matches(text, _) => {
                self.expect(text, &Shape::Text);
                Shape::Bool
            }
            ExprNode::Call(function, arguments) => self.call(*function, arguments),
            ExprNode::Loop(each) => self.check_loop(each),
        }
    }

    fn variable(&mut self, variable: Variable) -> Shape {
        match variable {
            Variable::Args
            | Variable::ToolName
            | Variable::ToolEffect
            | Variable::AgentName
            | Variable::UserId
            | Variable::UserTenant
            | Variable::TaskId => Shape::Text,
            Variable::AgentPath | Variable::UserGroups => Shape::List(Box::new(Shape::Text)),
            Variable::TaskMetadata => {
                self.found.from_caller.insert("task.metadata");
                Shape::Free
            }
            Variable::Session => {
                self.found.from_caller.insert("session");
                Shape::Text
            }
        }
    }

    fn member(&mut self, of: &ExprNode, name: &str, read: bool) -> Shape {
        let path = format!("{}.{name}", path(of));
        let shape = if let ExprNode::Variable(Variable::Args) = of {
            self.arguments.clone()
        } else {
            self.shape(of)
        };
        match shape {
            Shape::Object(mut members) => match members.remove(name) {
                None => self.refuse(format!("reads `{path}`, which the tool does not declare")),
                Some(Member {
                    shape: Shape::Untyped,
                    ..
                }) => self.refuse(format!(
                    "reads `{path}`, which the tool does not declare with one type"
                )),
                Some(Member { shape, required }) => {
                    if read && !required {
                        self.found.optional.insert(path.clone());
                    }
                    self.found.members.insert(path, shape.clone());
                    shape
                }
            },
            Shape::Untyped => self.refuse(format!(
                "reads `{path}`, which the tool does not declare with one type"
            )),
            Shape::Free => Shape::Free,
            shape @ (Shape::Null
            | Shape::Bool
            | Shape::Int
            | Shape::Double
            | Shape::Text
            | Shape::List(_)) => {
                self.misfit(format!(
                    "reads a member of a value of type {}",
                    shape.type_name()
                ));
                Shape::Free
            }
        }
    }

    fn index(&mut self, of: &ExprNode, at: &ExprNode) -> Shape {
        let computed = |path: String| format!("reads a member of `{path}` by a computed name");
        if let ExprNode::Variable(Variable::Args) = of {
            self.shape(at);
            return self.refuse(computed("args".to_owned()));
        }
        let at = self.shape(at);
        match self.shape(of) {
            Shape::Object(_) | Shape::Untyped => self.refuse(computed(path(of))),
            Shape::List(item) => {
                if !may_be(&at, &Shape::Int) {
                    self.misfit(format!(
                        "uses a value of type {} as an index",
                        at.type_name()
                    ));
                }
                *item
            }
            Shape::Free => Shape::Free,
            shape @ (Shape::Null | Shape::Bool | Shape::Int | Shape::Double | Shape::Text) => {
                self.misfit(format!("indexes a value of type {}", shape.type_name()));
                Shape::Free
            }
        }
    }

    fn compare(&mut self, operator: Comparison, left: &ExprNode, right: &ExprNode) -> Shape {
        let (left_shape, right_shape) = (self.shape(left), self.shape(right));
        let fits = match operator {
            Comparison::Equal | Comparison::NotEqual => equatable(&left_shape, &right_shape),
            Comparison::Less
            | Comparison::LessOrEqual
            | Comparison::Greater
            | Comparison::GreaterOrEqual => orderable(&left_shape, &right_shape),
            Comparison::In => {
                if let Shape::Object(_) = right_shape {
                    return self.refuse(format!("looks for a computed name in `{}`", path(right)));
                }
                if let Shape::List(item) = &right_shape {
                    equatable(&left_shape, item)
                } else {
                    is_any(&right_shape)
                }
            }
        };
        if !fits {
            self.mismatch(&left_shape, &right_shape);
        }
        Shape::Bool
    }

    fn calculate(&mut self, operator: Arithmetic, left: &ExprNode, right: &ExprNode) -> Shape {
        let (left_shape, right_shape) = (self.shape(left), self.shape(right));
        if !calculable(operator, &left_shape, &right_shape) {
            self.mismatch(&left_shape, &right_shape);
            return Shape::Free;
        }
        if is_any(&left_shape) {
            right_shape
        } else {
            left_shape
        }
    }

    fn mismatch(&mut self, one: &Shape, two: &Shape) {
        let (one, two) = (one.type_name(), two.type_name());
        self.misfit(format!(
            "puts values of types {one} and {two} together, which always fails"
        ));
    }

    fn call(&mut self, function: Function, arguments: &[ExprNode]) -> Shape {
        let takes_text = matches!(
            function,
            Function::Contains
                | Function::StartsWith
                | Function::EndsWith
                | Function::LowerAscii
                | Function::UpperAscii
                | Function::Trim
        );
        for argument in arguments {
            if takes_text {
                self.expect(argument, &Shape::Text);
                continue;
            }
            let shape = self.shape(argument);
            let has_size = !matches!(
                shape,
                Shape::Null | Shape::Bool | Shape::Int | Shape::Double
            );
            if function == Function::Size && !has_size {
                let name = shape.type_name();
                self.misfit(format!("takes the size of a value of type {name}"));
            }
        }
        match function {
            Function::Size | Function::Int => Shape::Int,
            Function::Contains | Function::StartsWith | Function::EndsWith => Shape::Bool,
            Function::LowerAscii | Function::UpperAscii | Function::Trim | Function::Text => {
                Shape::Text
            }
            Function::Double => Shape::Double,
        }
    }

    fn check_loop(&mut self, each: &Loop) -> Shape {
        self.local = match self.shape(&each.over) {
            Shape::List(item) => *item,
            shape @ (Shape::Free | Shape::Untyped) => shape,
            Shape::Object(_) => {
                self.refuse(format!("loops over the names of `{}`", path(&each.over)))
            }
            shape @ (Shape::Null | Shape::Bool | Shape::Int | Shape::Double | Shape::Text) => {
                self.misfit(format!("loops over a value of type {}", shape.type_name()));
                Shape::Free
            }
        };
        if let Some(filter) = &each.filter {
            self.expect(filter, &Shape::Bool);
        }
        match &each.result {
            LoopResult::All(test) | LoopResult::Exists(test) | LoopResult::ExistsOne(test) => {
                self.expect(test, &Shape::Bool);
                Shape::Bool
            }
            LoopResult::List(item) => Shape::List(Box::new(self.shape(item))),
        }
    }
}

/// Returns the path of a value in the form that messages show, such as `args.rows[].price`.
fn path(node: &ExprNode) -> String {
    if let ExprNode::Select(of, name) = node {
        format!("{}.{name}", path(of))
    } else if let ExprNode::Index(of, _) = node {
        format!("{}[]", path(of))
    } else if let ExprNode::Local(name) = node {
        name.clone()
    } else if let ExprNode::Variable(Variable::TaskMetadata) = node {
        "task.metadata".to_owned()
    } else if let ExprNode::Variable(Variable::Args) = node {
        "args".to_owned()
    } else {
        "(…)".to_owned()
    }
}

fn constant(literal: &Literal) -> Shape {
    match literal {
        Literal::Null => Shape::Null,
        Literal::Bool(_) => Shape::Bool,
        Literal::Int(_) => Shape::Int,
        Literal::Double(_) => Shape::Double,
        Literal::Text(_) => Shape::Text,
    }
}

fn common(shapes: Vec<Shape>) -> Shape {
    let mut shapes = shapes.into_iter();
    let Some(first) = shapes.next() else {
        return Shape::Free;
    };
    if shapes.all(|shape| shape == first) {
        first
    } else {
        Shape::Free
    }
}

fn is_any(shape: &Shape) -> bool {
    matches!(shape, Shape::Free | Shape::Untyped)
}

fn may_be(shape: &Shape, wanted: &Shape) -> bool {
    is_any(shape) || shape == wanted
}

fn orderable(left: &Shape, right: &Shape) -> bool {
    is_any(left)
        || is_any(right)
        || matches!(
            (left, right),
            (Shape::Int | Shape::Double, Shape::Int | Shape::Double)
                | (Shape::Text, Shape::Text)
                | (Shape::Bool, Shape::Bool)
        )
}

fn equatable(left: &Shape, right: &Shape) -> bool {
    match (left, right) {
        (Shape::Null, _) | (_, Shape::Null) => true,
        (Shape::List(left), Shape::List(right)) => equatable(left, right),
        _ => orderable(left, right),
    }
}

fn calculable(operator: Arithmetic, left: &Shape, right: &Shape) -> bool {
    match (left, right) {
        (Shape::Free | Shape::Untyped, _)
        | (_, Shape::Free | Shape::Untyped)
        | (Shape::Int, Shape::Int) => true,
        (Shape::Double, Shape::Double) => operator != Arithmetic::Remainder,
        (Shape::Text, Shape::Text) | (Shape::List(_), Shape::List(_)) => {
            operator == Arithmetic::Add
        }
        _ => false,
    }
}
