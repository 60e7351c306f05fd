// Package pgtest gives each test a database of its own, migrated, on a real
// PostgreSQL: the one at SBENCH_TEST_DSN, or a private server that lives and
// dies with the test process. It promises isolation between tests, and to fail,
// never to skip, where there is no PostgreSQL.
package pgtest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/store"
)

// DSNEnv names the environment variable with the address of a PostgreSQL in
// which the tests may create databases.
const DSNEnv = "SBENCH_TEST_DSN"

// server is started once per test process, by the first test that needs it.
var server = sync.OnceValues(startServer)

// template is the migrated database that the tests' databases are copies of.
var template = sync.OnceValues(makeTemplate)

var counter atomic.Int64

// New returns a store on an empty, migrated database that is dropped after t.
func New(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// DSN returns the address of an empty, migrated database that is dropped after t.
func DSN(t testing.TB) string {
	t.Helper()
	from, err := template()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return create(t, from)
}

// EmptyDSN is DSN without the migrations.
func EmptyDSN(t testing.TB) string {
	t.Helper()
	return create(t, "template0")
}

func create(t testing.TB, from string) string {
	t.Helper()
	admin, err := server()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	name := databaseName(fmt.Sprintf("t%d", counter.Add(1)))
	if err := execute(t.Context(), admin, "create database "+name+" template "+from); err != nil {
		t.Fatalf("pgtest: create database: %v", err)
	}
	t.Cleanup(func() {
		// The test's own context has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := execute(ctx, admin, "drop database if exists "+name+" with (force)"); err != nil {
			t.Errorf("pgtest: drop database: %v", err)
		}
	})
	return withDatabase(admin, name)
}

func makeTemplate() (string, error) {
	admin, err := server()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	name := databaseName("template")
	for _, sql := range []string{"drop database if exists " + name, "create database " + name + " template template0"} {
		if err := execute(ctx, admin, sql); err != nil {
			return "", fmt.Errorf("create template database: %w", err)
		}
	}
	s, err := store.Open(ctx, withDatabase(admin, name))
	if err != nil {
		return "", err
	}
	defer s.Close()
	return name, s.Migrate(ctx)
}

// databaseName is unique among the test processes that share a server.
func databaseName(suffix string) string {
	return fmt.Sprintf("sbench_test_%d_%s", os.Getpid(), suffix)
}

func withDatabase(dsn, name string) string {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return dsn
	}
	text := fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable",
		quote(config.Host), config.Port, quote(config.User), name)
	if config.Password != "" {
		text += " password=" + quote(config.Password)
	}
	return text
}

func quote(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
}

func execute(ctx context.Context, dsn, sql string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}
