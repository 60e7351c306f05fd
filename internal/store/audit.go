package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// AuditOutcome is what became of a request.
type AuditOutcome string

// The outcomes.
const (
	AuditAsked   AuditOutcome = "asked"
	AuditDone    AuditOutcome = "done"
	AuditRefused AuditOutcome = "refused" // not the caller's to ask for, or wrong
	AuditFailed  AuditOutcome = "failed"  // a fault on this side
)

// AuditRow is one row of the audit log.
type AuditRow struct {
	ID       int64
	Request  *int64 // the row of the asking; nil on that row
	At       time.Time
	UserName string
	UID      *int   `db:"uid"`
	Via      string // "" where nobody was identified
	TokenID  *int64
	Remote   string
	Action   string
	Object   string
	Outcome  AuditOutcome
	Detail   json.RawMessage
}

const (
	sqlInsertAudit = `
insert into audit (request, at, user_name, uid, via, token_id, remote, action, object, outcome, detail)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) returning id`
	sqlAuditRows = `
select id, request, at, user_name, uid, via, token_id, remote, action, object, outcome, detail from audit
 where at >= $1 and at < $2 and ($3 = '' or user_name = $3) and ($4 = '' or action like '%' || $4 || '%' or object like '%' || $4 || '%')
   and ($5 or outcome <> 'asked')
 order by id desc limit $6`
)

// Audit appends a row and returns its id.
func (s *Store) Audit(ctx context.Context, r AuditRow) (int64, error) {
	detail := r.Detail
	if detail == nil {
		detail = json.RawMessage(`{}`)
	}
	var id int64
	err := s.pool.QueryRow(ctx, sqlInsertAudit, r.Request, s.now().UTC(), r.UserName, r.UID, r.Via, r.TokenID, r.Remote, r.Action, r.Object,
		r.Outcome, detail).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("write audit log: %w", err)
	}
	return id, nil
}

// AuditFilter narrows AuditRows; a zero field does not.
type AuditFilter struct {
	Since, Until time.Time
	UserName     string
	Text         string // in the action or the object
	Asked        bool   // also the rows of the asking
	Limit        int
}

// AuditRows returns the newest rows first.
func (s *Store) AuditRows(ctx context.Context, f AuditFilter) ([]AuditRow, error) {
	if f.Until.IsZero() {
		f.Until = s.now().UTC().Add(time.Hour)
	}
	return collect[AuditRow](ctx, s.pool, "audit log", sqlAuditRows, f.Since, f.Until, f.UserName, f.Text, f.Asked, f.Limit)
}
