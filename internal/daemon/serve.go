package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"sbench/internal/auth"
)

// drain is how long a stopping daemon lets requests finish.
const drain = 10 * time.Second

// listen opens the socket. A socket that nobody answers on is what a killed
// daemon left; one that somebody answers on is left alone.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("create the socket's folder: %w", err)
	}
	lock, err := acquire(path + ".lock")
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("another daemon serves %s", path)
	}
	if err != nil {
		return nil, fmt.Errorf("lock socket: %w", err)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			lock.Close()
			return nil, fmt.Errorf("%s is in the way and no socket", path)
		}
		if err := os.Remove(path); err != nil {
			lock.Close()
			return nil, fmt.Errorf("remove old socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	// Everybody may connect: SO_PEERCRED says who it is.
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		lock.Close()
		return nil, fmt.Errorf("open socket to users: %w", err)
	}
	return &lockedListener{l, lock, path + ".lock"}, nil
}

// acquire takes the lock that keeps two starting daemons from removing each
// other's socket. A lock file that was removed meanwhile locks nothing: whoever
// held it was stopping, and the file is made anew.
func acquire(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			f.Close()
			return nil, err
		}
		held, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if named, err := os.Stat(path); err == nil && os.SameFile(held, named) {
			return f, nil
		}
		f.Close()
	}
}

// lockedListener gives the lock back with the socket.
type lockedListener struct {
	net.Listener
	lock *os.File
	path string
}

func (l *lockedListener) Close() error {
	err := l.Listener.Close()
	return errors.Join(err, os.Remove(l.path), l.lock.Close())
}

// serve answers requests until ctx ends, then lets those under way finish; over
// TLS where secure is not nil.
func serve(ctx context.Context, l net.Listener, secure *tls.Config, h http.Handler, log *slog.Logger) error {
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	srv := &http.Server{
		Handler: h, ConnContext: auth.ConnContext, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context { return requests },
	}
	done := make(chan error, 1)
	go func() {
		if secure == nil {
			done <- srv.Serve(l)
			return
		}
		srv.TLSConfig = secure
		done <- srv.ServeTLS(l, "", "")
	}()
	select {
	case err := <-done:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	// A fresh and bounded context: ctx has ended. Followed logs would never
	// finish by themselves and are cut half-way.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	timer := time.AfterFunc(drain/5, cut)
	defer timer.Stop()
	err := srv.Shutdown(stop)
	if err != nil {
		err = errors.Join(err, srv.Close())
	}
	if served := <-done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
