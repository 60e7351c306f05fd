package remote

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	"golang.org/x/sys/unix"

	"sbench/internal/batch"
)

func clientConfig(at batch.MirrorAddress, m batch.Mirror) (*ssh.ClientConfig, error) {
	signer, err := readKey(m.Key)
	if err != nil {
		return nil, err
	}
	check, err := knownhosts.New(m.KnownHosts)
	if err != nil {
		return nil, fmt.Errorf("read the known hosts: %w", err)
	}
	algorithms, err := knownAlgorithms(check, at.Host)
	if err != nil {
		return nil, fmt.Errorf("%w in %s: add its line, as ssh-keyscan prints it, after comparing the key", err, m.KnownHosts)
	}
	verify := func(host string, remote net.Addr, key ssh.PublicKey) error {
		if err := check(host, remote, key); err != nil {
			return fmt.Errorf("its host key %s is not the one in %s: %w", ssh.FingerprintSHA256(key), m.KnownHosts, err)
		}
		return nil
	}
	return &ssh.ClientConfig{
		User: at.User, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: verify, HostKeyAlgorithms: algorithms, ClientVersion: "SSH-2.0-sbench",
	}, nil
}

// knownAlgorithms are those of the keys that are known of a host: asked for
// another one, an honest server would look like a false one.
func knownAlgorithms(check ssh.HostKeyCallback, host string) ([]string, error) {
	none, err := ssh.NewPublicKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public())
	if err != nil {
		return nil, err
	}
	var known *knownhosts.KeyError
	if err := check(host, &net.TCPAddr{IP: net.IPv4zero}, none); !errors.As(err, &known) || len(known.Want) == 0 {
		return nil, fmt.Errorf("no host key of %s", host)
	}
	var algorithms []string
	for _, k := range known.Want {
		names := []string{k.Key.Type()}
		if names[0] == ssh.KeyAlgoRSA {
			names = []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
		}
		for _, name := range names {
			if !slices.Contains(algorithms, name) {
				algorithms = append(algorithms, name)
			}
		}
	}
	return algorithms, nil
}

// readKey reads a private key that nobody else can read. Its errors hold nothing
// of the file's content.
func readKey(name string) (ssh.Signer, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the key: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("the key %s is not a regular file", name)
	case info.Mode().Perm()&0o177 != 0:
		return nil, fmt.Errorf("the key %s has mode %04o: it must be 0600", name, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	defer clear(text)
	signer, err := ssh.ParsePrivateKey(text)
	var locked *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return nil, fmt.Errorf("the key %s has a passphrase: nobody is there to type it", name)
	case err != nil:
		return nil, fmt.Errorf("%s is not a private key that can be read", name)
	}
	return signer, nil
}
