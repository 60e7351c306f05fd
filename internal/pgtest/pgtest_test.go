package pgtest_test

import (
	"testing"

	"sbench/internal/pgtest"
)

func TestNew_IsolatedAndMigrated(t *testing.T) {
	t.Parallel()
	a, b := pgtest.DSN(t), pgtest.DSN(t)
	if a == b {
		t.Fatalf("two tests share %s", a)
	}
	s := pgtest.New(t)
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatalf("migrating what is migrated: %v", err)
	}
}
