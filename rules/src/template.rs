//! Templates: JSON in which some strings are paths.
//!
//! A string that begins with `$.` is an SQL/JSON path, whose first match is the value; `$$` begins a
//! literal with one `$` removed; `{"$all": "$.…[*]"}` is the array of all matches. Postgres evaluates the
//! paths; a template says which ones, and puts their values in place.

use serde_json::{Map, Value};

use crate::definition::{At, Problem};

/// A template that has been read.
#[derive(Clone, Debug, PartialEq)]
pub enum Template {
    /// JSON without a path in it, as it is (`$$` resolved).
    Literal(Value),
    /// The first match of a path, or JSON null.
    Path(String),
    /// All matches of a path, as an array.
    All(String),
    /// An object with a path somewhere in it.
    Object(Vec<(String, Template)>),
    /// An array with a path somewhere in it.
    Array(Vec<Template>),
}

/// A path to evaluate for a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// The SQL/JSON path.
    pub path: &'a str,
    /// False: its first match (`jsonb_path_query_first`). True: the array of all (`jsonb_path_query_array`).
    pub all: bool,
}

/// Told of what is found while a template is read.
pub(crate) trait Visitor {
    fn path(&mut self, at: &At<'_>, path: &str);
    fn problem(&mut self, at: &At<'_>, code: &'static str, message: String);
}

impl Template {
    /// Reads a template; the pointers of the problems begin at `value`. Paths are not checked here.
    pub fn parse(value: &Value) -> Result<Template, Vec<Problem>> {
        struct Problems(Vec<Problem>);
        impl Visitor for Problems {
            fn path(&mut self, _: &At<'_>, _: &str) {}
            fn problem(&mut self, at: &At<'_>, code: &'static str, message: String) {
                self.0.push(Problem {
                    pointer: at.pointer(),
                    code,
                    message,
                });
            }
        }
        let mut problems = Problems(Vec::new());
        let template = Template::read(value, &At::ROOT, &mut problems);
        if problems.0.is_empty() {
            Ok(template)
        } else {
            Err(problems.0)
        }
    }

    pub(crate) fn read(value: &Value, at: &At<'_>, visitor: &mut dyn Visitor) -> Template {
        match value {
            Value::String(text) if text.starts_with("$.") => {
                visitor.path(at, text);
                Template::Path(text.clone())
            }
            Value::String(text) if text.starts_with("$$") => Template::Literal(text[1..].into()),
            Value::Array(items) => {
                let items = items.iter().enumerate();
                let parts: Vec<_> = items
                    .map(|(index, item)| Template::read(item, &at.index(index), visitor))
                    .collect();
                match parts.iter().map(Template::literal).collect() {
                    Some(values) => Template::Literal(Value::Array(values)),
                    None => Template::Array(parts),
                }
            }
            Value::Object(fields) if fields.contains_key("$all") => {
                Template::read_all(fields, at, visitor)
            }
            Value::Object(fields) => {
                let parts: Vec<_> = fields
                    .iter()
                    .map(|(key, field)| (key.clone(), Template::read(field, &at.key(key), visitor)))
                    .collect();
                let literal =
                    |(key, part): &(String, Template)| Some((key.clone(), part.literal()?));
                match parts.iter().map(literal).collect::<Option<Map<_, _>>>() {
                    Some(values) => Template::Literal(Value::Object(values)),
                    None => Template::Object(parts),
                }
            }
            other => Template::Literal(other.clone()),
        }
    }

    /// `{"$all": path}`.
    fn read_all(fields: &Map<String, Value>, at: &At<'_>, visitor: &mut dyn Visitor) -> Template {
        for other in fields.keys().filter(|field| *field != "$all") {
            let message = "nothing stands beside $all".to_owned();
            visitor.problem(&at.key(other), "definition.conflicting_fields", message);
        }
        let at = at.key("$all");
        match fields.get("$all").and_then(Value::as_str) {
            Some(path) if path.starts_with("$.") => {
                visitor.path(&at, path);
                Template::All(path.to_owned())
            }
            _ => {
                let message = "expected a path that begins with $.".to_owned();
                visitor.problem(&at, "definition.wrong_type", message);
                Template::Literal(Value::Null)
            }
        }
    }

    fn literal(&self) -> Option<Value> {
        match self {
            Template::Literal(value) => Some(value.clone()),
            _ => None,
        }
    }

    /// Its paths, in the order in which [`render`](Self::render) takes their values.
    pub fn paths(&self) -> Vec<&str> {
        self.queries().into_iter().map(|query| query.path).collect()
    }

    /// Its paths and how to evaluate each, in the order of [`paths`](Self::paths).
    pub fn queries(&self) -> Vec<Query<'_>> {
        let mut queries = Vec::new();
        self.collect(&mut queries);
        queries
    }

    fn collect<'a>(&'a self, queries: &mut Vec<Query<'a>>) {
        match self {
            Template::Literal(_) => {}
            Template::Path(path) => queries.push(Query { path, all: false }),
            Template::All(path) => queries.push(Query { path, all: true }),
            Template::Object(fields) => fields.iter().for_each(|(_, part)| part.collect(queries)),
            Template::Array(items) => items.iter().for_each(|part| part.collect(queries)),
        }
    }

    /// The JSON text that results, like [`render`](Self::render) but put together from text: a number of a
    /// value keeps all its digits, where a value tree would round it to a double.
    pub fn render_text(&self, values: &mut dyn Iterator<Item = Option<String>>) -> String {
        match self {
            Template::Literal(value) => value.to_string(),
            Template::Path(_) => values.next().flatten().unwrap_or_else(|| "null".into()),
            Template::All(_) => values.next().flatten().unwrap_or_else(|| "[]".into()),
            Template::Object(fields) => {
                let fields = fields.iter().map(|(key, part)| {
                    format!("{}:{}", Value::from(key.as_str()), part.render_text(values))
                });
                format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
            }
            Template::Array(items) => {
                let items = items.iter().map(|part| part.render_text(values));
                format!("[{}]", items.collect::<Vec<_>>().join(","))
            }
        }
    }

    /// The JSON that results. `values` are the answers to [`queries`](Self::queries), in order; what is
    /// missing, in a match or at the end, is JSON null (an empty array for an `$all`).
    pub fn render(&self, values: &mut dyn Iterator<Item = Option<Value>>) -> Value {
        match self {
            Template::Literal(value) => value.clone(),
            Template::Path(_) => values.next().flatten().unwrap_or(Value::Null),
            Template::All(_) => {
                let matches = values.next().flatten();
                matches.unwrap_or_else(|| Value::Array(Vec::new()))
            }
            Template::Object(fields) => {
                let fields = fields.iter();
                Value::Object(
                    fields
                        .map(|(key, part)| (key.clone(), part.render(values)))
                        .collect(),
                )
            }
            Template::Array(items) => items.iter().map(|part| part.render(values)).collect(),
        }
    }
}
