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
type server struct {
	admin    func() (dsn string, err error)  // where databases can be made
	template func() (name string, err error) // the migrated database that the tests' are copies of
}

var (
	// disposable is quick to start and to fill, and keeps nothing.
	disposable = newServer(memoryDir, append(forgetful, "max_wal_size=256MB")...)
	// large is disposable on a disk.
	large = newServer(os.TempDir, forgetful...)
	// durable keeps what it has committed, as PostgreSQL does by itself, and has the
	// memory that its documentation advises for a server of 4 GB.
	durable = newServer(os.TempDir, "shared_buffers=1GB")
)

var forgetful = []string{"fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=64MB"}

// newServer returns a server whose files lie in a new folder of dir's.
func newServer(dir func() string, settings ...string) *server {
	s := &server{admin: sync.OnceValues(func() (string, error) { return startServer(dir(), settings) })}
	s.template = sync.OnceValues(s.makeTemplate)
	return s
}

var counter atomic.Int64

// New returns a store on an empty, migrated database that is dropped after t.
func New(t testing.TB) *store.Store {
	t.Helper()
	return open(t, disposable)
}

// NewLarge is New for more than fits into memory.
func NewLarge(t testing.TB) *store.Store {
	t.Helper()
	return open(t, large)
}

// NewDurable is New on a server that keeps what it commits, as the one of a site
// does: for benchmarks.
func NewDurable(t testing.TB) *store.Store {
	t.Helper()
	return open(t, durable)
}

func open(t testing.TB, on *server) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), on.migrated(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// DSN returns the address of an empty, migrated database that is dropped after t.
func DSN(t testing.TB) string {
	t.Helper()
	return disposable.migrated(t)
}

// EmptyDSN is DSN without the migrations.
func EmptyDSN(t testing.TB) string {
	t.Helper()
	return disposable.create(t, "template0")
}

func (s *server) migrated(t testing.TB) string {
	t.Helper()
	from, err := s.template()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return s.create(t, from)
}

func (s *server) create(t testing.TB, from string) string {
	t.Helper()
	admin, err := s.admin()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	name := databaseName(fmt.Sprintf("t%d", counter.Add(1)))
	if err := createDatabase(t.Context(), admin, name, from); err != nil {
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

func (s *server) makeTemplate() (string, error) {
	admin, err := s.admin()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	name := databaseName(fmt.Sprintf("template%d", counter.Add(1)))
	for _, sql := range []string{"drop database if exists " + name, "create database " + name + " template template0"} {
		if err := execute(ctx, admin, sql); err != nil {
			return "", fmt.Errorf("create template database: %w", err)
		}
	}
	migrated, err := store.Open(ctx, withDatabase(admin, name))
	if err != nil {
		return "", err
	}
	defer migrated.Close()
	return name, migrated.Migrate(ctx)
}

// databaseName is unique among the test processes that share a server.
func databaseName(suffix string) string {
	return fmt.Sprintf("sbench_test_%d_%s", os.Getpid(), suffix)
}

// createDatabase copies a database, file by file where the server can: 400 small files
// are copied in a quarter of the time in which their pages are.
func createDatabase(ctx context.Context, admin, name, from string) error {
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var copiesFiles bool
	if err := conn.QueryRow(ctx, "select current_setting('server_version_num')::integer >= 150000").Scan(&copiesFiles); err != nil {
		return err
	}
	sql := "create database " + name + " template " + from
	if copiesFiles {
		sql += " strategy file_copy"
	}
	_, err = conn.Exec(ctx, sql)
	return err
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
