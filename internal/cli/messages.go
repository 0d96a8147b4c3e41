package cli

import (
	"fmt"
	"strings"
)

// message is a sentence for people. Errors of the server and everything that programs read stay English.
type message struct{ en, de string }

var messages = map[string]message{
	"try_help":         {"Try doorward --help.", "Hilfe: doorward --help"},
	"hint_key":         {"Put a person's key into DOORWARD_KEY, or its path into DOORWARD_KEY_FILE.", "Den Schlüssel einer Person in DOORWARD_KEY setzen oder seinen Pfad in DOORWARD_KEY_FILE."},
	"hint_scan":        {"Scan it first: doorward server scan NAME", "Zuerst einlesen: doorward server scan NAME"},
	"hint_url":         {"Is it running? Its address goes into DOORWARD_URL or --door.", "Läuft es? Die Adresse gehört in DOORWARD_URL oder --door."},
	"first_start":      {"First start. These keys are shown once and stored only as a hash:", "Erster Start. Diese Schlüssel werden einmal gezeigt und nur als Prüfsumme gespeichert:"},
	"owner_key":        {"  owner's key    %s", "  Schlüssel der Eigentümerin  %s"},
	"agent_key":        {"  agent's key    %s", "  Schlüssel des Agenten       %s"},
	"key_given":        {"(as given)", "(wie vorgegeben)"},
	"serving":          {"Doorward serves on %s", "Doorward läuft auf %s"},
	"config_ok":        {"The configuration is valid.", "Die Konfiguration ist gültig."},
	"registered":       {"Registered %s. It waits for approval. Next: doorward server scan %[1]s", "%s ist eingetragen und wartet auf die Zulassung. Weiter: doorward server scan %[1]s"},
	"secret_in_argv":   {"The value of %s stood in the process list. Next time write ${VARIABLE} or @FILE.", "Der Wert von %s stand in der Prozessliste. Nächstes Mal ${VARIABLE} oder @DATEI schreiben."},
	"would_run":        {"These servers would be registered. Each starts only when it is scanned or approved:", "Diese Server würden eingetragen. Sie starten erst beim Einlesen oder nach der Zulassung:"},
	"confirm":          {"Register them? [y/N] ", "Eintragen? [j/N] "},
	"nothing_done":     {"Nothing was changed.", "Nichts wurde geändert."},
	"skipped":          {"Skipped %s: %s", "%s übersprungen: %s"},
	"scan_ok":          {"Scan of %s: %d tools, %d new, %d changed, %d removed. Nothing was admitted.", "%s eingelesen: %d Werkzeuge, %d neu, %d geändert, %d entfernt. Nichts wurde zugelassen."},
	"scan_next":        {"Next: doorward server tools %s, then doorward server approve %[1]s --suggested", "Weiter: doorward server tools %s, dann doorward server approve %[1]s --suggested"},
	"scan_failed":      {"Scan of %s failed: %s", "Einlesen von %s fehlgeschlagen: %s"},
	"choose":           {"Nothing was approved. Choose: --suggested for all suggestions, --tool NAME=ACTION for one, --none for no tool.", "Nichts wurde zugelassen. Auswählen: --suggested für alle Vorschläge, --tool NAME=AKTION für eines, --none für keines."},
	"approved":         {"%s is approved: %d tools admitted, %d not.", "%s ist genehmigt: %d Werkzeuge zugelassen, %d nicht."},
	"state":            {"%s is now %s.", "%s ist jetzt %s."},
	"removed":          {"Removed %s.", "%s ist entfernt."},
	"admitted":         {"Admitted %s with %s.", "%s ist zugelassen mit %s."},
	"admitted_n":       {"Admitted %d tools.", "%d Werkzeuge zugelassen."},
	"nothing_waiting":  {"No tool of %s waits.", "Kein Werkzeug von %s wartet."},
	"workspace_added":  {"Created workspace %s with the owner %s.", "Arbeitsbereich %s angelegt, Inhaber %s."},
	"tool_set":         {"%s is in tier %s.", "%s ist in der Stufe %s."},
	"tool_set_confirm": {"%s is in tier %s, and its calls need confirmation.", "%s ist in der Stufe %s, und Aufrufe müssen bestätigt werden."},
	"rule_set":         {"The rule of %s is now %s.", "Die Regel von %s ist jetzt %s."},
	"only_approval":    {"only with approval", "nur mit Freigabe"},
	"rule_auto":        {"set automatically", "automatisch gesetzt"},
	"rule_admin":       {"confirmed by an admin", "von einem Admin bestätigt"},
	"limit_added":      {"Set limit %s: %d calls per %s.", "Grenze %s gesetzt: %d Aufrufe je %s."},
	"limit_removed":    {"Removed limit %s.", "Grenze %s entfernt."},
	"policy_added":     {"Added rule %s: %s.", "Regel %s angelegt: %s."},
	"policy_removed":   {"Removed rule %s.", "Regel %s entfernt."},
	"decided":          {"%s: %s", "%s: %s"},
	"stopped":          {"Stopped %s %s at once; %d open approvals ended.", "%s %s sofort angehalten; %d offene Freigaben beendet."},
	"stop_unchanged":   {"%s %s was not active and stays as it is.", "%s %s war nicht aktiv und bleibt, wie es ist."},
	"shut_down":        {"Shut the whole workspace down; %d open approvals ended. doorward shutdown --release lifts it.", "Ganzer Arbeitsbereich abgeschaltet; %d offene Freigaben beendet. doorward shutdown --release hebt es auf."},
	"shut_already":     {"The workspace was shut down already.", "Der Arbeitsbereich war schon abgeschaltet."},
	"shutdown_active":  {"The workspace is shut down since %s by %s: %s", "Der Arbeitsbereich ist abgeschaltet seit %s durch %s: %s"},
	"shutdown_none":    {"The workspace is not shut down. To do so, give --reason.", "Der Arbeitsbereich ist nicht abgeschaltet. Abschalten: --reason angeben."},
	"reopened":         {"Lifted the shutdown of the workspace.", "Abschaltung des Arbeitsbereichs aufgehoben."},
	"released":         {"Released %s.", "%s ist wieder freigegeben."},
	"agent_added":      {"Created agent %s (%s).", "Agent %s angelegt (%s)."},
	"key_once":         {"Its key, shown only now: %s", "Sein Schlüssel, nur jetzt zu sehen: %s"},
	"task_added":       {"Started task %s; its token works until %s.", "Aufgabe %s begonnen; ihr Token gilt bis %s."},
	"token_once":       {"Its token, shown only now: %s", "Ihr Token, nur jetzt zu sehen: %s"},
	"person_set":       {"%s has the role %s.", "%s hat die Rolle %s."},
	"person_disabled":  {"%s is disabled.", "%s ist gesperrt."},
	"passwd_set":       {"%s has a new password; all sessions of that person ended.", "%s hat ein neues Passwort; alle Sitzungen dieser Person sind beendet."},
	"key_revoked":      {"Revoked key %s.", "Schlüssel %s widerrufen."},
	"oauth_added":      {"The OAuth client %s calls as %s from now on (%s)", "Der OAuth-Client %s ruft ab jetzt als %s auf (%s)"},
	"oauth_removed":    {"Removed the OAuth client %s", "OAuth-Client %s entfernt"},
	"person_added":     {"Created %s with the role %s. Next: doorward key add --person %[1]s", "%s mit der Rolle %s angelegt. Weiter: doorward key add --person %[1]s"},
	"record_whole":     {"The record is whole: %d rows, head %s.", "Das Protokoll ist unversehrt: %d Zeilen, Ende %s."},
	"record_broken":    {"The record is broken at row %d: %s (%d rows before it are good)", "Das Protokoll ist ab Zeile %d verletzt: %s (%d Zeilen davor sind gut)"},
	"record_counter":   {"The counter of a limit, %s, is not what the rows used; the next start of the server makes it anew.", "Der Zähler einer Grenze, %s, ist nicht, was die Zeilen verbraucht haben; der nächste Start des Servers stellt ihn neu her."},
	"record_signed":    {"%d checkpoints checked; signed up to row %d.", "%d Prüfpunkte geprüft; unterschrieben bis Zeile %d."},
	"proof_good":       {"Row %d (%s) is in the record of %d rows that this checkpoint signs; %d hashes checked.", "Zeile %d (%s) steht im Protokoll von %d Zeilen, das dieser Prüfpunkt unterschreibt; %d Prüfsummen nachgerechnet."},
	"proof_bad":        {"The proof is not good: %s", "Der Nachweis stimmt nicht: %s"},
	"pruned":           {"Removed %d rows; the record begins at row %d now.", "%d Zeilen entfernt; das Protokoll beginnt jetzt bei Zeile %d."},
	"backed_up":        {"Backup of %d rows in %d tables: %s", "Sicherung von %d Zeilen in %d Tabellen: %s"},
	"keep_key":         {"It opens nothing without secret.key of the data folder: keep a copy of that elsewhere.", "Ohne secret.key aus dem Datenordner öffnet sie kein Geheimnis: davon anderswo eine Kopie verwahren."},
	"restored":         {"Restored %d rows in %d tables.", "%d Zeilen in %d Tabellen wiederhergestellt."},
	"bring_key":        {"Before the first start, copy secret.key of the original into the data folder: without it sealed secrets do not open.", "Vor dem ersten Start secret.key des Originals in den Datenordner kopieren: ohne ihn öffnen sich versiegelte Geheimnisse nicht."},
	"migrated":         {"The schema was %d and is %d.", "Das Schema war %d und ist %d."},
	"simulated":        {"%d recorded calls: %d would be decided otherwise, %d stricter, %d looser.", "%d aufgezeichnete Aufrufe: %d würden anders entschieden, %d strenger, %d lockerer."},
	"sim_unjudged":     {"%d could not be judged: %s", "%d ließen sich nicht beurteilen: %s"},
	"sim_drifted":      {"%d differ from the record under today's rules already.", "%d weichen schon nach den heutigen Regeln vom Protokoll ab."},
	"sim_cut":          {"The lists end here; the sums count all. More: --limit, at most 1000.", "Die Listen enden hier; die Summen zählen alles. Mehr: --limit, höchstens 1000."},
	"sim_basis":        {"Time, caller, task and arguments are those of the record; servers, admission, stops, allowlists and roles are those of now.", "Zeit, Aufrufer, Aufgabe und Argumente sind die des Protokolls; Server, Zulassung, Stopps, Freigabelisten und Rollen die von jetzt."},
	"unmatched":        {"(matches no tool)", "(trifft kein Werkzeug)"},
	"none":             {"None.", "Keine."},
	"more":             {"More: --before %d", "Weitere: --before %d"},
	"decides":          {"%s: %s, decided by the stage %s", "%s: %s, entschieden von der Stufe %s"},
}

// say is a message in the language of the person.
func (e *env) say(key string, args ...any) string {
	m, ok := messages[key]
	if !ok {
		panic("cli: no message " + key)
	}
	text := m.en
	if e.lang == "de" {
		text = m.de
	}
	if len(args) == 0 {
		return text
	}
	return fmt.Sprintf(text, args...)
}

// print says a message on standard output, unless a program reads it.
func (e *env) print(key string, args ...any) {
	if !e.json {
		fmt.Fprintln(e.stdout, clean(e.say(key, args...)))
	}
}

// language is "de" or "en", by the variables that POSIX names, in their order.
func language(getenv func(string) string) string {
	for _, name := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		if v := getenv(name); v != "" {
			if strings.HasPrefix(v, "de") {
				return "de"
			}
			return "en"
		}
	}
	return "en"
}
