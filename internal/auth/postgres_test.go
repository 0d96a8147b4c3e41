package auth_test

import (
	"database/sql"
	"os"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/db"
)

// TestOnPostgres runs the tests whose SQL has more than one form to take on PostgreSQL too; newWorld knows them by this name.
func TestOnPostgres(t *testing.T) {
	t.Run("task", TestTaskToken)
	t.Run("over", TestTaskIsOver)
	t.Run("sign-in", TestSignIn)
	t.Run("refusals", TestSignInRefusals)
	t.Run("expiry", TestSessionExpiry)
	t.Run("ends", TestWhatEndsSessions)
	t.Run("lockout", TestLockout)
	t.Run("lockout of many", TestLockoutHoldsForManyAtOnce)
	t.Run("last owner", TestLastOwner)
}

// postgresURL gives the URL of an empty schema of its own, dropped at the end.
func postgresURL(t *testing.T) string {
	t.Helper()
	base := os.Getenv("DOORWARD_TEST_POSTGRES")
	if base == "" {
		base = "postgres://postgres@127.0.0.1:5432/postgres?sslmode=disable&connect_timeout=2"
	}
	admin, err := sql.Open("pgx", base)
	if err != nil {
		t.Fatal(err)
	}
	schema := "t_" + strings.ReplaceAll(db.NewID(), "-", "")
	if _, err := admin.ExecContext(t.Context(), `CREATE SCHEMA `+schema); err != nil {
		admin.Close()
		t.Skipf("no PostgreSQL to test with (set DOORWARD_TEST_POSTGRES): %v", err)
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(`DROP SCHEMA ` + schema + ` CASCADE`); err != nil {
			t.Error(err)
		}
		admin.Close()
	})
	return base + "&search_path=" + schema
}
