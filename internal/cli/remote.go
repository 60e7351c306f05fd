package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"sbench/internal/api"
	"sbench/internal/auth"
)

// The variables that say how to reach a daemon over TCP. Secrets are named by
// their file: an environment shows in listings.
const (
	serverEnv      = "SBENCH_SERVER"
	tokenFileEnv   = "SBENCH_TOKEN_FILE"
	caFileEnv      = "SBENCH_CA_FILE"
	mungeSocketEnv = "SBENCH_MUNGE_SOCKET"
	maxTokenFile   = 1 << 10
)

// connect prepares the client of a daemon over TCP, where one is named. The
// caller is known by a token, where SBENCH_TOKEN_FILE names one, else by MUNGE.
func (a *app) connect() error {
	server := a.server
	if server == "" && a.socket == "" {
		server = a.env(serverEnv)
	}
	if server == "" {
		return nil
	}
	if a.socket != "" {
		return usagef("--server and --socket exclude each other")
	}
	authorize, err := a.authorization(server)
	if err != nil {
		return err
	}
	var secure *tls.Config
	if file := a.env(caFileEnv); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return usagef("%s: %v", caFileEnv, err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return usagef("%s: no certificate in %s", caFileEnv, file)
		}
		secure = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	a.remote, err = api.NewRemoteClient(server, secure, authorize)
	if err != nil {
		return &failure{status: exitUsage, message: err.Error(), err: err}
	}
	return nil
}

func (a *app) authorization(server string) (api.Authorize, error) {
	file := a.env(tokenFileEnv)
	if file == "" {
		return auth.Munge{Socket: a.env(mungeSocketEnv)}.Authorization, nil
	}
	if !private(server) {
		return nil, &failure{
			status: exitUsage, message: "a token is not sent to " + server + ": others could read it on the way",
			hint: "use https://, or unset " + tokenFileEnv + " to be known by MUNGE",
		}
	}
	token, err := readToken(file)
	if err != nil {
		return nil, usagef("%s: %v", tokenFileEnv, err)
	}
	return func(context.Context, string, string, []byte) (string, error) {
		return auth.BearerAuthorization(token), nil
	}, nil
}

// private reports whether nobody reads on the way to an address.
func private(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Scheme == "https" || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// readToken reads a file that nobody else may read.
func readToken(file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("others may read %s: chmod 600 it, and revoke the token if they did", file)
	}
	if info.Size() > maxTokenFile {
		return "", fmt.Errorf("%s is no token", file)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", errors.New("no token in " + file)
	}
	return token, nil
}
