//! The JSON Schema of a definition.

use serde_json::Value;

/// The JSON Schema (draft 2020-12) of a definition, for editors and generators. It says less than
/// [`validate`](super::validate), which knows the graph, and never refuses what that takes.
pub fn schema() -> Value {
    let text = include_str!("../../definition.schema.json");
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::fields::{DELAY, EDGE, EVENT, RETRY, STEP, TASK, TOP};
    use super::*;

    fn names(object: &Value) -> BTreeSet<&str> {
        let properties = object["properties"].as_object().expect("properties");
        properties.keys().map(String::as_str).collect()
    }

    #[test]
    fn the_schema_and_the_validator_know_the_same_fields() {
        let schema = schema();
        let defs = &schema["$defs"];
        let table = [
            (&schema, TOP),
            (&defs["step"], STEP),
            (&defs["task_step"], TASK),
            (&defs["event_step"], EVENT),
            (&defs["delay_step"], DELAY),
            (&defs["retry"], RETRY),
            (&defs["edge"]["anyOf"][1], EDGE),
        ];
        let mut objects = 0;
        for (object, fields) in table {
            assert_eq!(names(object), fields.iter().copied().collect());
            objects += 1;
        }
        // No object of the schema is left out of the table.
        fn count(value: &Value) -> usize {
            match value {
                Value::Object(fields) => {
                    usize::from(fields.contains_key("properties"))
                        + fields.values().map(count).sum::<usize>()
                }
                Value::Array(items) => items.iter().map(count).sum(),
                _ => 0,
            }
        }
        assert_eq!(count(&schema), objects);
    }

    #[test]
    fn every_reference_of_the_schema_leads_somewhere() {
        fn check(value: &Value, schema: &Value) {
            match value {
                Value::Object(fields) => {
                    if let Some(target) = fields.get("$ref") {
                        let pointer = target.as_str().expect("text").trim_start_matches('#');
                        assert!(schema.pointer(pointer).is_some(), "{pointer}");
                    }
                    fields.values().for_each(|field| check(field, schema));
                }
                Value::Array(items) => items.iter().for_each(|item| check(item, schema)),
                _ => {}
            }
        }
        let schema = schema();
        assert_eq!(
            schema["$schema"],
            "https://json-schema.org/draft/2020-12/schema"
        );
        check(&schema, &schema);
    }
}
