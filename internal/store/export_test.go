package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool gives tests the connections, for what the store refuses to do.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// GeneratedSQL names the statements that are built from tables.
func GeneratedSQL() map[string]string { return generatedSQL() }

// ElectHanging elects a leader that never asks whether it still leads.
func (s *Store) ElectHanging(ctx context.Context, holder string, silence time.Duration) (*Leadership, error) {
	return s.elect(ctx, holder, 24*time.Hour, silence)
}
