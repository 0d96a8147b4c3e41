package testkit

import (
	"crypto/rand"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // for PostgresURL
)

// defaultPostgres is the server that test/postgres.sh starts where none answers.
const defaultPostgres = "postgres://postgres@127.0.0.1:5432/postgres?sslmode=disable&connect_timeout=2"

// PostgresURL is the URL of an empty database of the test's own, dropped when the test ends. The test is skipped where
// no PostgreSQL answers at DOORWARD_TEST_POSTGRES (default: the local one).
func PostgresURL(t testing.TB) string {
	t.Helper()
	base := os.Getenv("DOORWARD_TEST_POSTGRES")
	if base == "" {
		base = defaultPostgres
	}
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal("DOORWARD_TEST_POSTGRES is not a URL")
	}
	admin, err := sql.Open("pgx", base)
	if err != nil {
		t.Fatal(err)
	}
	name := "doorward_test_" + strings.ToLower(rand.Text())
	// template0 is never in use by others.
	if _, err := admin.ExecContext(t.Context(), `CREATE DATABASE `+name+` TEMPLATE template0`); err != nil {
		admin.Close()
		t.Skipf("no PostgreSQL to test with (run test/postgres.sh, or set DOORWARD_TEST_POSTGRES): %v", err)
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(`DROP DATABASE ` + name + ` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
		admin.Close()
	})
	u.Path = "/" + name
	return u.String()
}

// Database is the database that the test shall open: empty (SQLite), or with DOORWARD_TEST_DATABASE=postgres as PostgresURL.
func Database(t testing.TB) string {
	t.Helper()
	if os.Getenv("DOORWARD_TEST_DATABASE") != "postgres" {
		return ""
	}
	return PostgresURL(t)
}
