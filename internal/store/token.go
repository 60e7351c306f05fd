package store

import (
	"context"
	"fmt"
	"time"
)

// Token is a token without its text.
type Token struct {
	ID         int64
	Name       string
	SecretHash []byte
	UserName   string
	UID        int `db:"uid"`
	Scopes     []string
	Account    string
	CreatedAt  time.Time
	CreatedBy  string
	ExpiresAt  time.Time
	RevokedAt  *time.Time
	RevokedBy  string
	LastUsedAt *time.Time
}

const (
	sqlTokenColumns = `
select id, name, secret_hash, user_name, uid, scopes, account, created_at, created_by, expires_at, revoked_at, revoked_by, last_used_at
  from token`
	sqlToken       = sqlTokenColumns + ` where id = $1`
	sqlTokens      = sqlTokenColumns + ` where $1 = '' or user_name = $1 order by id`
	sqlInsertToken = `
insert into token (name, secret_hash, user_name, uid, scopes, account, created_at, created_by, expires_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9) returning id`
	sqlRevokeToken = `
update token set revoked_at = $2, revoked_by = $3 where id = $1 and revoked_at is null`
	// Once a minute is enough to know whether anybody needs it still.
	sqlTouchToken = `
update token set last_used_at = $2 where id = $1 and (last_used_at is null or last_used_at < $2::timestamptz - interval '1 minute')`
)

// Token returns one token, or ErrNotFound.
func (s *Store) Token(ctx context.Context, id int64) (Token, error) {
	list, err := collect[Token](ctx, s.pool, "token", sqlToken, id)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("token %d: %w", id, ErrNotFound)
	}
	if err != nil {
		return Token{}, err
	}
	return list[0], nil
}

// Tokens lists the tokens of a user, or of all where userName is "".
func (s *Store) Tokens(ctx context.Context, userName string) ([]Token, error) {
	return collect[Token](ctx, s.pool, "tokens", sqlTokens, userName)
}

// TouchToken notes that a token was used.
func (s *Store) TouchToken(ctx context.Context, id int64) error {
	if _, err := s.pool.Exec(ctx, sqlTouchToken, id, s.now().UTC()); err != nil {
		return fmt.Errorf("note use of token %d: %w", id, err)
	}
	return nil
}

// CreateToken stores a token and fills in its id and time.
func (s *Store) CreateToken(ctx context.Context, t *Token) error {
	return s.WithTx(ctx, func(tx *Tx) error {
		t.CreatedAt = tx.now
		err := tx.QueryRow(ctx, sqlInsertToken, t.Name, t.SecretHash, t.UserName, t.UID, t.Scopes, t.Account, t.CreatedAt, t.CreatedBy, t.ExpiresAt).Scan(&t.ID)
		if err != nil {
			return fmt.Errorf("store token %s: %w", t.Name, err)
		}
		return nil
	})
}

// RevokeToken ends a token at once. One that is revoked already stays as it is.
func (s *Store) RevokeToken(ctx context.Context, id int64, by string) error {
	return s.WithTx(ctx, func(tx *Tx) error {
		if _, err := tx.Exec(ctx, sqlRevokeToken, id, tx.now, by); err != nil {
			return fmt.Errorf("revoke token %d: %w", id, err)
		}
		return nil
	})
}

const (
	sqlSeeCredential = `
insert into credential_seen (digest, until) values ($1, $2) on conflict (digest) do nothing`
	sqlForgetCredentials = `delete from credential_seen where until < $1`
)

// Once reports whether a credential was never shown before, to any daemon, and
// remembers it until then.
func (s *Store) Once(ctx context.Context, digest string, until time.Time) (bool, error) {
	tag, err := s.pool.Exec(ctx, sqlSeeCredential, digest, until)
	if err != nil {
		return false, fmt.Errorf("remember credential: %w", err)
	}
	if _, err := s.pool.Exec(ctx, sqlForgetCredentials, s.now().UTC()); err != nil {
		return false, fmt.Errorf("forget old credentials: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}
