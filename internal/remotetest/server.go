// Package remotetest is an SSH server with SFTP inside of a test's process, over a
// folder of the disk. It promises real protocol bytes on a real connection, and
// that what it made is gone with the test.
package remotetest

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"sbench/internal/batch"
)

// Server is a running server.
type Server struct {
	// Mirror is how a client finds it, with a key that it lets in and its host key.
	Mirror batch.Mirror
	// Connections counts those that were let in.
	Connections atomic.Int64

	config *ssh.ServerConfig
	cut    atomic.Int64 // bytes after which a connection is cut; 0 never
}

// Start serves root until the test ends.
func Start(t testing.TB, root string) *Server {
	t.Helper()
	hostKey, _ := NewKey(t)
	clientKey, clientPEM := NewKey(t)
	s := &Server{config: &ssh.ServerConfig{
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if !bytes.Equal(key.Marshal(), clientKey.PublicKey().Marshal()) {
				return nil, errors.New("another key")
			}
			return &ssh.Permissions{}, nil
		},
	}}
	s.config.AddHostKey(hostKey)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	host := listener.Addr().String()
	s.Mirror = batch.Mirror{URL: (&url.URL{Scheme: "sftp", User: url.User("tester"), Host: host, Path: root}).String(), Key: filepath.Join(dir, "key"), KnownHosts: filepath.Join(dir, "known_hosts")}
	line := knownhosts.Line([]string{host}, hostKey.PublicKey()) + "\n"
	if err := errors.Join(os.WriteFile(s.Mirror.Key, clientPEM, 0o600), os.WriteFile(s.Mirror.KnownHosts, []byte(line), 0o644)); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	ended := false
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if ended {
				_ = conn.Close()
			}
			open[conn] = true
			mu.Unlock()
			running.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		ended = true
		for conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return s
}

// NewKey makes a key pair; text is what a key file holds.
func NewKey(t testing.TB) (signer ssh.Signer, text []byte) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	if signer, err = ssh.NewSignerFromKey(private); err != nil {
		t.Fatal(err)
	}
	return signer, pem.EncodeToMemory(block)
}

// CutAfter cuts every later connection when that many bytes were sent.
func (s *Server) CutAfter(bytes int64) { s.cut.Store(bytes) }

func (s *Server) serve(conn net.Conn) {
	defer conn.Close()
	if left := s.cut.Load(); left > 0 {
		conn = &cutConn{Conn: conn, left: left}
	}
	c, channels, requests, err := ssh.NewServerConn(conn, s.config)
	if err != nil {
		return // the client did not like this server, or the server the client
	}
	defer c.Close()
	s.Connections.Add(1)
	go ssh.DiscardRequests(requests)
	for offer := range channels {
		channel, asked, err := offer.Accept()
		if err != nil {
			return
		}
		go func() {
			for r := range asked {
				_ = r.Reply(r.Type == "subsystem", nil)
			}
		}()
		server, err := sftp.NewServer(channel, sftp.ReadOnly())
		if err != nil {
			return
		}
		_ = server.Serve() // ends with the connection
		_ = server.Close()
	}
}

// cutConn closes itself in the middle of what it sends.
type cutConn struct {
	net.Conn
	left int64 // written by one goroutine at a time, as ssh writes
}

func (c *cutConn) Write(b []byte) (int, error) {
	if int64(len(b)) >= c.left {
		return 0, errors.Join(net.ErrClosed, c.Close())
	}
	c.left -= int64(len(b))
	return c.Conn.Write(b)
}
