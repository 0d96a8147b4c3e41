package auth_test

import "testing"

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
	t.Run("names", TestNamesThatLookAlike)
	t.Run("renamed", TestRenamedLikeAnother)
}
