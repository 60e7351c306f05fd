package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"sbench/schema"
)

// The errors that callers tell apart.
var (
	// ErrNotFound says that no such row exists.
	ErrNotFound = errors.New("not found")
	// ErrConflict says that an idempotency key was used for something else.
	ErrConflict = errors.New("idempotency key belongs to another request")
	// ErrIllegalTransition says that lifecycle does not allow the change.
	ErrIllegalTransition = errors.New("illegal transition")
	// ErrFenced says that another daemon has been elected since: stop acting.
	ErrFenced = errors.New("another daemon acts now")
	// ErrNewer says that the database belongs to a later version of sbench.
	ErrNewer = errors.New("the database is of a newer sbench: upgrade this one")
)

// SQLSTATEs raised by the schema's own triggers, and two of PostgreSQL's.
const (
	codeIllegalTransition = "SB001"
	codeSerialization     = "40001"
	codeDeadlock          = "40P01"
)

// Store is a pool of connections to one database. It is safe for concurrent use.
type Store struct {
	pool  *pgxpool.Pool
	now   func() time.Time
	epoch int64 // 0: writes are not fenced
	axes  *axesCache
}

// Open connects to the database that dsn names (a URL or key=value text) and
// checks that it answers. It changes nothing: see Migrate.
func Open(ctx context.Context, dsn string) (*Store, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("database address: %w", err)
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "sbench"
	}
	config.ConnConfig.RuntimeParams["timezone"] = "UTC"
	config.AfterConnect = prepare
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to database: %w", err)
	}
	return &Store{pool: pool, now: time.Now, axes: &axesCache{}}, nil
}

// idleInTransaction is how long a transaction may wait for its next statement. One
// of a daemon that was stopped holds the fence, and with it every election.
const idleInTransaction = time.Minute

// Statements here are short: to start workers, and to hand them the rows, takes longer
// than they save.
const sqlPrepareConnection = `
select set_config('idle_in_transaction_session_timeout', $1, false), set_config('max_parallel_workers_per_gather', '0', false)`

// prepare lets the server end a connection whose transaction was left alone, and
// answer with one process.
func prepare(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, sqlPrepareConnection, strconv.FormatInt(idleInTransaction.Milliseconds(), 10))
	return err
}

// Close waits for the connections in use and closes them all.
func (s *Store) Close() { s.pool.Close() }

// WithClock returns a store on the same connections that takes the time of its
// rows from now.
func (s *Store) WithClock(now func() time.Time) *Store {
	c := *s
	c.now = now
	return &c
}

// Fenced returns a store on the same connections whose every WithTx fails with
// ErrFenced once a daemon of a later epoch has been elected. Reads are free.
func (s *Store) Fenced(epoch int64) *Store {
	c := *s
	c.epoch = epoch
	return &c
}

// Ping reports whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("ping database: %w", err)
	}
	return nil
}

// Migrate brings the schema up to date, whatever is in Slurm meanwhile. Several
// daemons may call it at once: one works, the others wait. The error is ErrNewer
// where a later version has been here: it knows of what this one would overlook.
func (s *Store) Migrate(ctx context.Context) error {
	db := stdlib.OpenDBFromPool(s.pool)
	defer db.Close()
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, schema.FS,
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	have, err := provider.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	sources := provider.ListSources()
	if newest := sources[len(sources)-1].Version; have > newest {
		return fmt.Errorf("migrate: schema %d, this program knows %d: %w", have, newest, ErrNewer)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// Tx is a transaction. It must not be used after WithTx returned.
type Tx struct {
	pgx.Tx
	now   time.Time // one instant for all rows of the transaction
	epoch *int64
}

// Now is the instant that the transaction writes into its rows.
func (tx *Tx) Now() time.Time { return tx.now }

// sqlFence fails to find its row when the epoch has passed; the share lock makes
// a new election wait until this transaction is over.
const sqlFence = `select set_config('sbench.epoch', epoch::text, true) from fence where epoch = $1 for share`

// WithTx runs fn in a transaction and commits it if fn returns nil. fn may run
// again after a deadlock, so it must have no effect outside the database.
func (s *Store) WithTx(ctx context.Context, fn func(tx *Tx) error) error {
	const tries = 5
	for try := 1; ; try++ {
		err := s.withTx(ctx, fn)
		var pg *pgconn.PgError
		if try < tries && errors.As(err, &pg) && (pg.Code == codeDeadlock || pg.Code == codeSerialization) {
			continue
		}
		return err
	}
}

func (s *Store) withTx(ctx context.Context, fn func(tx *Tx) error) error {
	err := pgx.BeginFunc(ctx, s.pool, func(ptx pgx.Tx) error {
		tx := &Tx{Tx: ptx, now: s.now().UTC().Truncate(time.Microsecond)}
		if s.epoch != 0 {
			tx.epoch = &s.epoch
			var epoch string
			switch err := ptx.QueryRow(ctx, sqlFence, s.epoch).Scan(&epoch); {
			case errors.Is(err, pgx.ErrNoRows):
				return ErrFenced
			case err != nil:
				return fmt.Errorf("check leadership: %w", err)
			}
		}
		return fn(tx)
	})
	return translate(err)
}

// translate gives the errors of the schema's triggers their names.
func translate(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == codeIllegalTransition {
		return fmt.Errorf("%w: %s", ErrIllegalTransition, pg.Message)
	}
	return err
}

// one turns "no rows" into ErrNotFound of what.
func one(err error, what string, id any) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%s %v: %w", what, id, ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("read %s %v: %w", what, id, err)
	}
	return nil
}

// querier is what reads need: the pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// collect reads all rows of a statement into structs by column name.
func collect[T any](ctx context.Context, q querier, what, sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return list, nil
}
