//! Reading a definition into a draft: every field, but nothing that needs two steps at once.

use serde_json::{Map, Value};

use super::fields::{EDGE, KindName, RETRY};
use super::graph::{DelayStep, EventStep, Join, Kind, On, OnTimeout, RetryFields, TaskStep};
use super::problem::{At, quote};
use super::read::{Duration, Reader};
use super::{MAX_DEPTH, MAX_EDGES, MAX_STEPS, Span};
use crate::ids::{check_name, check_step_key};
use crate::jsonpath;
use crate::lane::{PRIORITIES, canonical_tags};
use crate::retry::{ATTEMPTS, FACTOR, JITTER};
use crate::template::{Template, Visitor};

/// A definition as it was read. Parts with problems are left out.
pub(crate) struct Draft<'a> {
    pub(crate) name: &'a str,
    pub(crate) result: DraftResult<'a>,
    pub(crate) timeout: Option<Span>,
    pub(crate) priority: Option<i32>,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) steps: Vec<DraftStep<'a>>,
}

pub(crate) enum DraftResult<'a> {
    Default,
    Declined,
    Step(&'a str),
}

pub(crate) struct DraftStep<'a> {
    /// Its place in the definition as given, for pointers.
    pub(crate) index: usize,
    /// Empty if it has no valid one.
    pub(crate) key: &'a str,
    pub(crate) kind: Option<Kind>,
    pub(crate) after: Vec<DraftEdge<'a>>,
    pub(crate) join: Join,
    pub(crate) when: Option<String>,
    pub(crate) input: Option<Template>,
    pub(crate) optional: bool,
    pub(crate) mentions: Vec<Mention>,
}

pub(crate) struct DraftEdge<'a> {
    /// Its place in `after` as given, for pointers.
    pub(crate) index: usize,
    /// The key of the prerequisite.
    pub(crate) step: &'a str,
    pub(crate) on: On,
}

/// A step that a path names.
pub(crate) struct Mention {
    /// Where the path is.
    pub(crate) pointer: String,
    pub(crate) step: String,
}

/// Reads a definition; `None` if it is no object of steps or too large to look at closely.
pub(crate) fn read<'a>(definition: &'a Value, reader: &mut Reader<'_>) -> Option<Draft<'a>> {
    let at = At::ROOT;
    let Value::Object(object) = definition else {
        reader.wrong_type(&at, "an object", definition);
        return None;
    };
    if let Err(message) = check_size(definition) {
        reader.problem(&at, "definition.too_large", message);
        return None;
    }
    reader.check_top(&at, object);
    let name = match object.get("name") {
        Some(value) => reader.name(&at.key("name"), value),
        None => {
            reader.problem(&at, "definition.missing_field", "name is missing");
            None
        }
    };
    let result = match object.get("result") {
        None => DraftResult::Default,
        Some(Value::Null) => DraftResult::Declined,
        Some(value) => match value.as_str() {
            Some(key) => DraftResult::Step(key),
            None => {
                reader.wrong_type(&at.key("result"), "the key of a step or null", value);
                DraftResult::Declined
            }
        },
    };
    let timeout = reader.span(&at, object, "timeout", Duration::Limit);
    let priority = reader.priority(&at, object);
    let tags = reader.tags(&at, object);
    let steps_at = at.key("steps");
    let steps = match object.get("steps") {
        None => {
            reader.problem(&at, "definition.missing_field", "steps is missing");
            None
        }
        Some(Value::Array(steps)) => Some(steps),
        Some(other) => {
            reader.wrong_type(&steps_at, "an array", other);
            None
        }
    };
    let steps = steps?;
    if steps.is_empty() {
        reader.problem(&steps_at, "definition.no_steps", "there are no steps");
    }
    let steps = steps.iter().enumerate();
    let steps = steps.map(|(index, step)| reader.step(&steps_at.index(index), index, step));
    Some(Draft {
        steps: steps.collect(),
        name: name.unwrap_or(""),
        result,
        timeout,
        priority,
        tags,
    })
}

/// Counts steps, edges and depth without recursion.
fn check_size(definition: &Value) -> Result<(), String> {
    let steps = definition.get("steps").and_then(Value::as_array);
    let steps = steps.map_or(&[][..], Vec::as_slice);
    if steps.len() > MAX_STEPS {
        return Err(format!("{} steps; at most {MAX_STEPS}", steps.len()));
    }
    let edges = |step: &Value| step.get("after")?.as_array().map(Vec::len);
    let edges: usize = steps.iter().filter_map(edges).sum();
    if edges > MAX_EDGES {
        return Err(format!("{edges} edges; at most {MAX_EDGES}"));
    }
    let mut open = vec![(definition, 1)];
    while let Some((value, depth)) = open.pop() {
        if depth > MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH}"));
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => open.extend(fields.values().map(|field| (field, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}

impl Reader<'_> {
    fn step<'a>(&mut self, at: &At<'_>, index: usize, value: &'a Value) -> DraftStep<'a> {
        let mut step = DraftStep {
            index,
            key: "",
            kind: None,
            after: Vec::new(),
            join: Join::All,
            when: None,
            input: None,
            optional: false,
            mentions: Vec::new(),
        };
        let Value::Object(object) = value else {
            self.wrong_type(at, "an object", value);
            return step;
        };
        let kind = self.check_step(at, object);
        step.key = match object.get("key") {
            None => {
                self.problem(at, "definition.missing_field", "key is missing");
                ""
            }
            Some(value) => {
                let check = |key: &str| check_step_key("key", key);
                let key = self.checked(&at.key("key"), value, "definition.invalid_key", check);
                key.unwrap_or("")
            }
        };
        if let Some(value) = object.get("after") {
            step.after = self.edges(&at.key("after"), value);
        }
        if let Some(value) = object.get("join") {
            let words = Join::ALL.iter().map(|join| (join.as_str(), *join));
            let join = self.choice(&at.key("join"), value, &words.collect::<Vec<_>>());
            step.join = join.unwrap_or(Join::All);
        }
        if let Some(value) = object.get("when") {
            let at = at.key("when");
            if let Some(path) = self.text(&at, value) {
                self.path(&at, path, &mut step.mentions);
                step.when = Some(path.to_owned());
            }
        }
        step.optional = self.flag(&at.key("optional"), object.get("optional"));
        step.kind = match kind {
            Some(KindName::Task) => {
                if let Some(value) = object.get("input") {
                    step.input = Some(self.template(&at.key("input"), value, &mut step.mentions));
                }
                self.task(at, object).map(Kind::Task)
            }
            Some(KindName::Event) => self.event(at, object, step.key).map(Kind::Event),
            Some(KindName::Delay) => {
                let delay = self.delay(at, object, &mut step.mentions);
                delay.map(Kind::Delay)
            }
            None => None,
        };
        step
    }

    fn edges<'a>(&mut self, at: &At<'_>, value: &'a Value) -> Vec<DraftEdge<'a>> {
        let Value::Array(items) = value else {
            self.wrong_type(at, "an array of steps", value);
            return Vec::new();
        };
        let items = items.iter().enumerate();
        let edges = items.filter_map(|(index, item)| {
            let (step, on) = self.edge(&at.index(index), item)?;
            Some(DraftEdge { index, step, on })
        });
        edges.collect()
    }

    fn edge<'a>(&mut self, at: &At<'_>, value: &'a Value) -> Option<(&'a str, On)> {
        let object = match value {
            Value::String(step) => return Some((step, On::Success)),
            Value::Object(object) => object,
            other => {
                self.wrong_type(at, "the key of a step or an object", other);
                return None;
            }
        };
        self.check_part(at, object, EDGE);
        if object.contains_key("on") && object.contains_key("release") {
            let message = "release is another word for on; give one of them";
            self.problem(&at.key("release"), "definition.conflicting_fields", message);
        }
        let words: Vec<_> = On::ALL.iter().map(|on| (on.as_str(), *on)).collect();
        let mut on = On::Success;
        for field in ["on", "release"] {
            if let Some(value) = object.get(field) {
                let choice = self.choice(&at.key(field), value, &words);
                on = choice.unwrap_or(On::Success);
            }
        }
        match object.get("step") {
            Some(step) => Some((self.text(&at.key("step"), step)?, on)),
            None => {
                self.problem(at, "definition.missing_field", "step is missing");
                None
            }
        }
    }

    fn task(&mut self, at: &At<'_>, object: &Map<String, Value>) -> Option<TaskStep> {
        let task = object.get("task");
        let task = task.and_then(|value| self.name(&at.key("task"), value));
        let retry = self.retry(at, object);
        let timeout = self.span(at, object, "timeout", Duration::Limit);
        let deadline = self.span(at, object, "deadline", Duration::Limit);
        let lease = self.span(at, object, "lease", Duration::Limit);
        let priority = self.priority(at, object);
        let tags = self.tags(at, object);
        let hold = object.get("on_exhausted").and_then(|value| {
            let words = [("fail", false), ("hold", true)];
            self.choice(&at.key("on_exhausted"), value, &words)
        });
        let allow_continue = self.flag(&at.key("allow_continue"), object.get("allow_continue"));
        Some(TaskStep {
            task: task?.to_owned(),
            retry,
            timeout,
            deadline,
            lease,
            priority,
            tags,
            hold: hold.unwrap_or(false),
            allow_continue,
        })
    }

    fn retry(&mut self, at: &At<'_>, object: &Map<String, Value>) -> RetryFields {
        let at = at.key("retry");
        let object = match object.get("retry") {
            None => return RetryFields::default(),
            Some(Value::Object(object)) => object,
            Some(other) => {
                self.wrong_type(&at, "an object", other);
                return RetryFields::default();
            }
        };
        self.check_part(&at, object, RETRY);
        let attempts = object.get("max_attempts");
        let fields = RetryFields {
            max_attempts: attempts
                .and_then(|value| self.integer(&at.key("max_attempts"), value, ATTEMPTS)),
            initial: self.span(&at, object, "initial", Duration::Distance),
            factor: object
                .get("factor")
                .and_then(|value| self.number(&at.key("factor"), value, FACTOR)),
            max: self.span(&at, object, "max", Duration::Distance),
            jitter: object
                .get("jitter")
                .and_then(|value| self.number(&at.key("jitter"), value, JITTER)),
        };
        if let (Some(initial), Some(max)) = (fields.initial, fields.max)
            && initial.fixed_us() > max.fixed_us()
        {
            let message = "the first delay is longer than the longest, max";
            self.problem(&at.key("initial"), "definition.out_of_range", message);
        }
        fields
    }

    fn event(&mut self, at: &At<'_>, object: &Map<String, Value>, key: &str) -> Option<EventStep> {
        let event = match object.get("event") {
            // The field says that this is an event step; null leaves the name to the default.
            None | Some(Value::Null) => Some(key),
            Some(value) => self.name(&at.key("event"), value),
        };
        let timeout = self.span(at, object, "timeout", Duration::Limit);
        let on_timeout = object.get("on_timeout").and_then(|value| {
            let words = OnTimeout::ALL.iter().map(|on| (on.as_str(), *on));
            self.choice(&at.key("on_timeout"), value, &words.collect::<Vec<_>>())
        });
        let default = object.get("default");
        if object.contains_key("on_timeout") && !object.contains_key("timeout") {
            let message = "on_timeout needs a timeout";
            self.problem(
                &at.key("on_timeout"),
                "definition.conflicting_fields",
                message,
            );
        }
        if default.is_some() && on_timeout != Some(OnTimeout::Succeed) {
            let message = "default is the output after \"on_timeout\": \"succeed\", and needs it";
            self.problem(&at.key("default"), "definition.conflicting_fields", message);
        }
        Some(EventStep {
            event: event?.to_owned(),
            timeout,
            on_timeout: on_timeout.unwrap_or(OnTimeout::Fail),
            default: default.cloned(),
        })
    }

    fn delay(
        &mut self,
        at: &At<'_>,
        object: &Map<String, Value>,
        mentions: &mut Vec<Mention>,
    ) -> Option<DelayStep> {
        if let Some(value) = object.get("delay") {
            let at = at.key("delay");
            if value.as_str().is_some_and(|text| text.starts_with("$.")) {
                return Some(DelayStep::ForPath(self.template(&at, value, mentions)));
            }
            let span = self.duration(&at, value, Duration::Calendar)?;
            return Some(DelayStep::For(span));
        }
        let at = at.key("until");
        let value = object.get("until")?;
        let text = self.text(&at, value)?;
        if text.starts_with("$.") {
            return Some(DelayStep::UntilPath(self.template(&at, value, mentions)));
        }
        if let Err(message) = self.host.timestamp(text) {
            self.problem(&at, "definition.invalid_timestamp", message);
            return None;
        }
        Some(DelayStep::Until(text.to_owned()))
    }

    fn name<'a>(&mut self, at: &At<'_>, value: &'a Value) -> Option<&'a str> {
        let check = |text: &str| check_name("the name", text);
        self.checked(at, value, "definition.invalid_name", check)
    }

    fn span(
        &mut self,
        at: &At<'_>,
        object: &Map<String, Value>,
        field: &str,
        rule: Duration,
    ) -> Option<Span> {
        let value = object.get(field)?;
        self.duration(&at.key(field), value, rule)
    }

    fn priority(&mut self, at: &At<'_>, object: &Map<String, Value>) -> Option<i32> {
        let value = object.get("priority")?;
        self.integer(&at.key("priority"), value, PRIORITIES)
    }

    fn tags(&mut self, at: &At<'_>, object: &Map<String, Value>) -> Option<Vec<String>> {
        let at = at.key("tags");
        let Value::Array(items) = object.get("tags")? else {
            self.wrong_type(&at, "an array of strings", object.get("tags")?);
            return None;
        };
        let items = items.iter().enumerate();
        let tags = items.filter_map(|(index, item)| self.name(&at.index(index), item));
        Some(canonical_tags(tags.map(str::to_owned).collect()))
    }

    fn template(&mut self, at: &At<'_>, value: &Value, mentions: &mut Vec<Mention>) -> Template {
        let mut visitor = TemplatePaths {
            reader: self,
            mentions,
        };
        Template::read(value, at, &mut visitor)
    }

    /// Checks a path and notes the steps that it names.
    fn path(&mut self, at: &At<'_>, path: &str, mentions: &mut Vec<Mention>) {
        if let Err(message) = self.host.jsonpath(path) {
            self.problem(at, "definition.invalid_path", message);
            return;
        }
        let named = jsonpath::named(path);
        for fault in named.faults {
            let message = format!("{} (in {})", fault.message, quote(path));
            self.problem(at, fault.code, message);
        }
        mentions.extend(named.steps.into_iter().map(|step| Mention {
            pointer: at.pointer(),
            step,
        }));
    }
}

struct TemplatePaths<'a, 'h> {
    reader: &'a mut Reader<'h>,
    mentions: &'a mut Vec<Mention>,
}

impl Visitor for TemplatePaths<'_, '_> {
    fn path(&mut self, at: &At<'_>, path: &str) {
        self.reader.path(at, path, self.mentions);
    }

    fn problem(&mut self, at: &At<'_>, code: &'static str, message: String) {
        self.reader.problem(at, code, message);
    }
}
