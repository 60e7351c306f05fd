package store

import "github.com/jackc/pgx/v5/pgxpool"

// Pool gives tests the connections, for what the store refuses to do.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// GeneratedSQL names the statements that are built from tables.
func GeneratedSQL() map[string]string { return generatedSQL() }
