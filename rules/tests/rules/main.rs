//! The rules through their public interface: a few stories, whole tables, and properties.

mod compiled;
mod fuzz;
mod host;
mod problems;
mod release;
mod schedule;
mod schedule_series;
mod template;
