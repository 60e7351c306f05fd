// Package store keeps sbench's state in PostgreSQL: work state (sweeps, settings,
// runs, batches, tasks, allocations, transitions) and results (attempts, results,
// aggregates). It promises that no change of state goes unrecorded and that what
// lifecycle does not allow cannot be stored, because triggers see to both; that
// results are append-only; and that a daemon that lost its leadership writes
// nothing any more. It refuses to guess: times come from the caller's clock.
//
// Every statement is a constant whose name begins with sql (or, where columns
// come from the axes and metrics tables, a package variable listed in
// generatedSQL). A test PREPAREs all of them against the migrated schema and
// rejects statements written in place.
package store
