//! `adopt`.

use pgrx::pg_extern;

use super::admin::sweeps;
use crate::engine;
use crate::error::OrRaise;
use crate::pg::spi::connect;
use crate::pg::table::Table;

#[pg_extern(sql = false)]
fn adopt() -> Table {
    connect(engine::adopt::adopt).map(sweeps).or_raise()
}
