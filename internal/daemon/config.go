package daemon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.yaml.in/yaml/v3"

	"sbench/internal/api"
)

// Config is the daemon's configuration file. Every key may be left out but dsn
// and sites.
type Config struct {
	// Socket is the Unix socket of the API. Everybody may connect; the kernel says
	// who it is.
	Socket string `yaml:"socket"`
	// DSN is PostgreSQL's address: a URL, or "host=… dbname=…". A password belongs
	// into a .pgpass file or PGPASSFILE.
	DSN string `yaml:"dsn"`
	// Sites are the paths of the site files.
	Sites []string `yaml:"sites"`
	// Runner and GPUHelper are the programs that are copied into the spool.
	Runner    string `yaml:"runner"`
	GPUHelper string `yaml:"gpu_helper"`
	// Operators may act on everybody's sweeps and on sites, as root and the
	// daemon's own user may.
	Operators []string `yaml:"operators"`
	LogLevel  string   `yaml:"log_level"`  // debug, info, warn, error
	LogFormat string   `yaml:"log_format"` // text, json
}

// Default returns the configuration of an empty file.
func Default() Config {
	c := Config{Socket: api.DefaultSocket, LogLevel: "info", LogFormat: "text", Sites: []string{}, Operators: []string{}}
	if self, err := os.Executable(); err == nil {
		// The programs are installed side by side.
		c.Runner = filepath.Join(filepath.Dir(self), "sbench-runner")
		if helper := filepath.Join(filepath.Dir(self), "sbench-gpu"); isFile(helper) {
			c.GPUHelper = helper
		}
	}
	return c
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// Load reads a configuration file: unknown and repeated keys are errors. The
// paths in it are relative to its folder.
func Load(path string) (Config, error) {
	c := Default()
	text, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("%s: holds more than one document", path)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	for _, p := range []*string{&c.Socket, &c.Runner, &c.GPUHelper} {
		*p = below(dir, *p)
	}
	for i := range c.Sites {
		c.Sites[i] = below(dir, c.Sites[i])
	}
	if err := c.check(); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func below(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// check returns all faults at once.
func (c Config) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.DSN == "" {
		fail("dsn is missing")
	} else if _, err := pgxpool.ParseConfig(c.DSN); err != nil {
		fail("dsn is no address of a PostgreSQL") // the error would show the password
	}
	if len(c.Sites) == 0 {
		fail("sites is empty: name at least one site file")
	}
	if len(c.Socket) > 107 {
		fail("socket %s is longer than the 107 bytes of a socket's path", c.Socket)
	}
	if !isFile(c.Runner) {
		fail("runner %s is no file", c.Runner)
	}
	if c.GPUHelper != "" && !isFile(c.GPUHelper) {
		fail("gpu_helper %s is no file", c.GPUHelper)
	}
	if _, err := level(c.LogLevel); err != nil {
		fail("log_level %q is none of debug, info, warn, error", c.LogLevel)
	}
	if !slices.Contains([]string{"text", "json"}, c.LogFormat) {
		fail("log_format %q is neither text nor json", c.LogFormat)
	}
	return errors.Join(errs...)
}

func level(name string) (slog.Level, error) {
	var l slog.Level
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, name) {
		return l, fmt.Errorf("unknown log level %q", name)
	}
	return l, l.UnmarshalText([]byte(name))
}

// Redacted returns the effective configuration as YAML without passwords.
func (c Config) Redacted() (string, error) {
	if p, err := pgxpool.ParseConfig(c.DSN); err == nil {
		cc := p.ConnConfig
		c.DSN = fmt.Sprintf("host=%s port=%d user=%s dbname=%s", cc.Host, cc.Port, cc.User, cmp.Or(cc.Database, cc.User))
		if cc.Password != "" {
			c.DSN += " password=(hidden)"
		}
	} else {
		c.DSN = "(not readable)"
	}
	text, err := yaml.Marshal(c)
	return string(text), err
}

// logger writes to w as the configuration asks.
func (c Config) logger(w io.Writer) *slog.Logger {
	l, err := level(c.LogLevel)
	if err != nil {
		l = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: l}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
